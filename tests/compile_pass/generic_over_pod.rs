//! Code over `Pod` that was written before `DeviceCopy` was there.

use aquifer::bytemuck::Pod;
use aquifer::{DeviceRead, DeviceScalar, DeviceSlice, DeviceVec, DeviceWrite, Result, Stream};

fn f<T: Pod>(vec: &DeviceVec<T>) -> Result<Vec<T>> {
    vec.to_vec()
}

fn all<T: Pod + Send>(stream: &Stream, host: Vec<T>, value: T) -> Result<T> {
    let mut vec = DeviceVec::from_slice(stream, &host)?;
    vec.fill(value)?;
    vec.push(value)?;
    vec.extend_from_slice(&host)?;
    part(&vec.slice(..1)?)?;
    write(&mut vec)?;
    f(&vec)?;
    let (_, vec) = stream.upload(host, vec)?.wait()?;
    let (_, vec) = stream.download(vec, Vec::<T>::new())?.wait()?;
    let bytes = vec.cast::<u8>()?.cast::<T>()?;
    DeviceScalar::new(stream, bytes.get(0)?)?.value()
}

fn part<T: Pod>(slice: &DeviceSlice<'_, T>) -> Result<DeviceVec<T>> {
    DeviceVec::zeroed(slice.home(), slice.len())
}

fn write<T: Pod, D: DeviceRead<T> + DeviceWrite<T>>(data: &mut D) -> Result<()> {
    let zero = T::zeroed();
    data.as_device_slice_mut().fill(zero)
}

fn main() {
    let _ = (all::<f32>, f::<[u8; 4]>);
}
