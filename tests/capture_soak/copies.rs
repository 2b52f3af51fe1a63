//! Copies between the host and vectors: those that wait, owned ones, and those of scopes.

use crate::kernels::ADD_ONE;
use crate::player::Player;
use crate::shared::{Item, Pinned, Step, Stop};
use crate::wakers;
use allocator_api2::vec::Vec as AllocVec;
use aquifer::{
    DeviceVec, LaunchConfig, Transfer,
    pinned::{HostBuffer, HostRead},
    transfer::TransferError,
};

/// How a transfer ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Waited,
    Awaited,
    Later,
    Dropped,
}

type Buffers<B> = (B, DeviceVec<u32>);

impl<'a> Player<'a> {
    /// Page-locked memory.
    pub(crate) fn host(&mut self, value: u32) -> Step<Pinned> {
        let mut host = AllocVec::new_in(self.shared.pinned.clone());
        let length = self.shared.setup.length;
        match host.try_reserve_exact(length) {
            Ok(()) => host.resize(length, value),
            Err(_) if self.shared.is_lost() => return Err(Stop::Lost),
            Err(error) => return Err(Stop::Failed(format!("page-locked memory: {error}"))),
        }
        Ok(host)
    }

    fn takes_pinned(&mut self) -> bool {
        self.shared.setup.pinned && self.random.one_in(2)
    }

    pub(crate) fn read(&mut self) -> Step {
        let Some(at) = self.item()? else { return Ok(()) };
        let item = self.items.swap_remove(at);
        let read = self.read_item(&item);
        self.items.push(item);
        read
    }

    pub(crate) fn read_item(&mut self, item: &Item) -> Step {
        let (id, value) = (item.id, item.value);
        self.says(|| format!("reads vector {id}, which has to hold {value:#x}"));
        if self.takes_pinned() {
            let mut host = self.host(!value)?;
            let read = item.vec.copy_to_slice(&mut host);
            return match self.took("reads to page-locked memory", read)? {
                Some(()) => item.agrees("a read to page-locked memory", &host),
                None => Ok(()),
            };
        }
        match self.took("reads to pageable memory", item.vec.to_vec())? {
            Some(found) => item.agrees("a read", &found),
            None => Ok(()),
        }
    }

    pub(crate) fn write(&mut self) -> Step {
        let Some(at) = self.item()? else { return Ok(()) };
        let (id, value) = (self.items[at].id, self.shared.value());
        let written = match self.takes_pinned() {
            true => {
                let host = self.host(value)?;
                let written = self.items[at].vec.copy_from_slice(&host);
                self.took("writes from page-locked memory", written)?
            }
            false => {
                let host = vec![value; self.shared.setup.length];
                let written = self.items[at].vec.copy_from_slice(&host);
                self.took("writes from pageable memory", written)?
            }
        };
        self.says(|| format!("wrote vector {id} with {value:#x}"));
        if written.is_some() {
            self.items[at].value = value;
        }
        Ok(())
    }

    /// Copies in a scope, and a kernel on memory that it maps.
    pub(crate) fn scope(&mut self) -> Step {
        let (Some(at), stream) = (self.item()?, self.stream()) else { return Ok(()) };
        let mut item = self.items.swap_remove(at);
        let (value, length) = (self.shared.value(), self.shared.setup.length);
        let (pinned, maps) = (self.takes_pinned(), self.random.one_in(3));
        let (source, mut target) = match pinned {
            true => (self.host(value)?, self.host(!value)?),
            false => (Pinned::new_in(self.shared.pinned.clone()), self.host_none()),
        };
        let (plain, mut plain_target) = (vec![value; length], vec![!value; length]);
        let (id, on) = (item.id, stream.id());
        self.says(|| {
            format!("a scope on stream {on} writes vector {id} with {value:#x}, reads it")
        });
        let (mut uploaded, mut downloaded, mut ran) = (false, false, false);
        let scoped = stream.scope(|scope| {
            if maps && pinned {
                let mut mapped = scope.map_mut(&mut target)?;
                let launch = stream.launch(&ADD_ONE).mapped_in_out(&mut mapped)?;
                let launch = launch.scalar(length as u32)?;
                // SAFETY: the kernel touches `length` elements of what is mapped.
                unsafe { launch.launch(LaunchConfig::for_elements(length))? };
                ran = true;
                return Ok(());
            }
            scope.upload(if pinned { &source } else { &plain }, &mut item.vec)?;
            uploaded = true;
            let target = if pinned { &mut target[..] } else { &mut plain_target[..] };
            scope.download(&item.vec, target)?;
            downloaded = true;
            Ok(())
        });
        if uploaded {
            item.value = value;
        }
        let what = match (maps && pinned, pinned) {
            (true, _) => "scopes with mapped memory",
            (false, true) => "scopes with page-locked memory",
            (false, false) => "scopes with pageable memory",
        };
        let found = if pinned { &target[..] } else { &plain_target[..] };
        let ended = self.took(what, scoped)?.is_some();
        if ended && ran && found.iter().any(|&found| found != (!value).wrapping_add(1)) {
            return Err(Stop::Failed(format!("wrong data in mapped memory: {found:x?}")));
        }
        if ended && downloaded {
            item.agrees("a scope", found)?;
        }
        self.items.push(item);
        Ok(())
    }

    fn host_none(&mut self) -> Pinned {
        Pinned::new_in(self.shared.pinned.clone())
    }

    pub(crate) fn transfer(&mut self) -> Step {
        let Some(at) = self.item()? else { return Ok(()) };
        let item = self.items.swap_remove(at);
        let value = self.shared.value();
        if self.takes_pinned() {
            let host = self.host(value)?;
            return self.transfer_of(item, host, value);
        }
        let host = vec![value; self.shared.setup.length];
        self.transfer_of(item, host, value)
    }

    fn transfer_of<B>(&mut self, mut item: Item, host: B, value: u32) -> Step
    where
        B: HostBuffer<Item = u32> + AsRef<[u32]> + 'static,
    {
        let (stream, down) = (self.stream(), self.random.one_in(2));
        let end = self.random.pick(&[End::Waited, End::Awaited, End::Later, End::Dropped]);
        // What is dropped on a lost context is leaked, and so are its device and the device's thread.
        let end = if self.shared.setup.loses { End::Waited } else { end };
        let Item { id, vec, .. } = item;
        let on = stream.id();
        self.says(|| match down {
            true => format!("downloads vector {id} on stream {on}, {end:?}"),
            false => format!("uploads {value:#x} to vector {id} on stream {on}, {end:?}"),
        });
        let begun = if down { stream.download(vec, host) } else { stream.upload(host, vec) };
        let transfer = match begun {
            Ok(transfer) => transfer,
            Err(TransferError { error, buffers }) => {
                let what = "a transfer that did not begin";
                self.took(what, Err::<(), _>(error))?;
                let Some(buffers) = buffers else {
                    return Err(Stop::Failed("a refused transfer kept its buffers".into()));
                };
                item.vec = buffers.1;
                self.items.push(item);
                return Ok(());
            }
        };
        let value = if down { item.value } else { value };
        match end {
            End::Dropped => {
                self.count("transfers dropped early");
                Ok(())
            }
            End::Later => {
                self.count("transfers left to later");
                self.later.push(Box::new(move |player| {
                    player.end(id, value, "transfers waited for later", transfer.wait())
                }));
                Ok(())
            }
            End::Waited => self.end(id, value, "transfers waited for", transfer.wait()),
            End::Awaited => {
                let ended = self.await_it(transfer)?;
                self.end(id, value, "transfers awaited", ended)
            }
        }
    }

    fn await_it<B: HostBuffer>(
        &mut self,
        mut transfer: Transfer<B>,
    ) -> Step<Result<Buffers2<B>, TransferError<B>>> {
        for _ in 0..self.random.below(3) {
            let waker = self.random.below(wakers::COUNT);
            match wakers::poll_wrongly(&mut transfer, waker) {
                None => self.count("wakers that panicked in a poll"),
                Some(Some(ended)) => return Ok(ended),
                Some(None) => self.count("wakers left with a transfer"),
            }
        }
        Ok(wakers::block_on(&mut transfer))
    }

    fn end<B: HostBuffer<Item = u32> + AsRef<[u32]>>(
        &mut self,
        id: u32,
        value: u32,
        what: &'static str,
        ended: Result<Buffers<B>, TransferError<B>>,
    ) -> Step {
        let (host, vec) = match ended {
            Ok(buffers) => buffers,
            Err(failed) => return Err(self.shared.unexpected(what, &failed.error)),
        };
        self.count(what);
        self.says(|| format!("{what}: vector {id}"));
        let item = Item { id, vec, value, guard: None };
        item.agrees(what, host.as_ref())?;
        self.items.push(item);
        Ok(())
    }
}

type Buffers2<B> = (B, DeviceVec<<B as HostRead>::Item>);
