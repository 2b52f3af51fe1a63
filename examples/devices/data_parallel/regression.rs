//! Linear regression by gradient descent: the samples, the kernels, and the same on the CPU.

use aquifer::{DeviceVec, HostArgs, Kernel, LaunchConfig, Result, Stream};
use std::ops::Range;

pub(crate) const SAMPLES: usize = 10_000;
pub(crate) const FEATURES: usize = 16;
/// Of the mean over all samples.
const RATE: f32 = 0.5;

const PTX: &str = include_str!("../../../docs/kernels/regression.ptx");

/// Parameters: x, y, the weights, the gradient to add to, how many samples, how many features.
static ADD_GRADIENT: Kernel = Kernel::new("add_gradient", PTX, add_gradient_on_host);

/// Parameters: the weights, the gradient, the rate, how many features.
static DESCEND: Kernel = Kernel::new("descend", PTX, descend_on_host);

fn add_gradient_on_host(_config: &LaunchConfig, mut args: HostArgs<'_>) -> Result<()> {
    let (x, y) = (args.input::<f32>()?, args.input::<f32>()?);
    let (weights, gradient) = (args.input::<f32>()?, args.in_out::<f32>()?);
    let (samples, features) = (args.scalar::<u32>()? as usize, args.scalar::<u32>()? as usize);
    for (row, y) in x.chunks_exact(features).zip(y).take(samples) {
        let error = row.iter().zip(weights).map(|(x, weight)| x * weight).sum::<f32>() - y;
        gradient.iter_mut().zip(row).for_each(|(gradient, x)| *gradient += error * x);
    }
    Ok(())
}

fn descend_on_host(_config: &LaunchConfig, mut args: HostArgs<'_>) -> Result<()> {
    let (weights, gradient) = (args.in_out::<f32>()?, args.in_out::<f32>()?);
    let (rate, features) = (args.scalar::<f32>()?, args.scalar::<u32>()? as usize);
    for (weight, gradient) in weights.iter_mut().zip(gradient).take(features) {
        *weight -= rate * std::mem::take(gradient);
    }
    Ok(())
}

/// Samples on the host: `FEATURES` numbers of `x` for each of `y`.
pub(crate) struct Samples {
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Samples {
    /// The samples of these numbers. With the noise in `y`, each share has weights of its own that fit it best: ranks
    /// that did not sum their gradients would be found out.
    pub(crate) fn of(numbers: Range<usize>) -> Self {
        let mut random = fastrand::Rng::with_seed(1);
        let mut noise = || 2.0 * random.f32() - 1.0;
        let (mut x, mut y) = (Vec::new(), Vec::new());
        // Each rank draws the same numbers from the first on, and keeps those of its own samples.
        for sample in 0..numbers.end {
            let row = [(); FEATURES].map(|()| noise());
            let fitted: f32 = row.iter().enumerate().map(|(at, x)| x * (at as f32 - 4.0)).sum();
            let measured = fitted + 4.0 * noise();
            if numbers.contains(&sample) {
                x.extend(row);
                y.push(measured);
            }
        }
        Self { x, y }
    }

    /// The numbers of the samples of one rank. The shares differ by one sample at most.
    pub(crate) fn share(rank: usize, ranks: usize) -> Range<usize> {
        SAMPLES * rank / ranks..SAMPLES * (rank + 1) / ranks
    }

    /// The mean square of what `weights` get wrong.
    pub(crate) fn loss(&self, weights: &[f64]) -> f64 {
        let squares = self.rows().map(|(row, y)| (predicted(row, weights) - y).powi(2));
        squares.sum::<f64>() / self.y.len() as f64
    }

    fn rows(&self) -> impl Iterator<Item = (&[f32], f64)> {
        self.x.chunks_exact(FEATURES).zip(self.y.iter().copied().map(f64::from))
    }
}

fn predicted(row: &[f32], weights: &[f64]) -> f64 {
    row.iter().zip(weights).map(|(&x, weight)| f64::from(x) * weight).sum()
}

/// The model of one rank and its share of the samples, on its device.
pub(crate) struct Model {
    x: DeviceVec<f32>,
    y: DeviceVec<f32>,
    pub(crate) weights: DeviceVec<f32>,
    pub(crate) gradient: DeviceVec<f32>,
}

impl Model {
    /// Weights of zero, at home on `stream`, in memory of `resource`.
    pub(crate) fn new(
        stream: &Stream,
        samples: &Samples,
        resource: impl aquifer::DeviceResource + Clone + 'static,
    ) -> Result<Self> {
        Ok(Self {
            x: DeviceVec::from_slice_in(stream, &samples.x, resource.clone())?,
            y: DeviceVec::from_slice_in(stream, &samples.y, resource.clone())?,
            weights: DeviceVec::zeroed_in(stream, FEATURES, resource.clone())?,
            gradient: DeviceVec::zeroed_in(stream, FEATURES, resource)?,
        })
    }

    /// Adds what this rank's samples say of the gradient.
    pub(crate) fn add_gradient(&mut self, stream: &Stream) -> Result<()> {
        let samples = self.y.len();
        let launch = stream
            .launch(&ADD_GRADIENT)
            .input(&self.x)?
            .input(&self.y)?
            .input(&self.weights)?
            .in_out(&mut self.gradient)?
            .scalar(samples as u32)?
            .scalar(FEATURES as u32)?;
        // SAFETY: the kernel reads `samples` rows of FEATURES numbers, and adds to FEATURES numbers.
        unsafe { launch.launch(LaunchConfig::for_elements(samples)) }
    }

    /// Applies the gradient of all samples, and sets it to zero for the next step.
    pub(crate) fn descend(&mut self, stream: &Stream) -> Result<()> {
        let launch = stream
            .launch(&DESCEND)
            .in_out(&mut self.weights)?
            .in_out(&mut self.gradient)?
            .scalar(RATE / SAMPLES as f32)?
            .scalar(FEATURES as u32)?;
        // SAFETY: both have FEATURES elements, which is all that the kernel touches.
        unsafe { launch.launch(LaunchConfig::for_elements(FEATURES)) }
    }
}

/// The weights after as many steps on the CPU, over all samples at once and in `f64`.
pub(crate) fn on_cpu(samples: &Samples, steps: u32) -> Vec<f64> {
    let mut weights = vec![0.0; FEATURES];
    for _ in 0..steps {
        let mut gradient = [0.0; FEATURES];
        for (row, y) in samples.rows() {
            let error = predicted(row, &weights) - y;
            gradient.iter_mut().zip(row).for_each(|(sum, &x)| *sum += error * f64::from(x));
        }
        let rate = f64::from(RATE) / samples.y.len() as f64;
        weights.iter_mut().zip(gradient).for_each(|(weight, sum)| *weight -= rate * sum);
    }
    weights
}
