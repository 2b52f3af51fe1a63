//! A thread forks while others are in the middle of their steps. The child gets an error or nothing from all that
//! it inherits, and hangs nowhere.

use crate::player::Player;
use crate::shared::{Item, Step};
use aquifer::ipc::IpcExport;
use aquifer::{DeviceLayout, DeviceResource, ErrorKind, Result, Stream};
use std::sync::Arc;

/// Seconds after which a child that hangs is killed.
const PATIENCE: u32 = 5;

/// What the child inherits. It takes no lock of the soak's, which another thread may have had.
struct Inherited {
    resource: Option<Arc<dyn DeviceResource>>,
    pool: Option<crate::setup::Pool>,
    stream: Stream,
    items: Vec<Item>,
}

impl Player<'_> {
    pub(crate) fn fork(&mut self) -> Step {
        let Some(stream) = self.stream() else { return Ok(()) };
        let (pool, resource) = self.pool().unzip();
        self.says(|| "the process forks".into());
        // SAFETY: the child makes the calls below, which the crate allows in it, and never returns.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let items = std::mem::take(&mut self.items);
            in_child(Inherited { resource, pool, stream, items });
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if child <= 0 || waited != child {
            return Err("there is no child to wait for".into());
        }
        self.shared.count("forks");
        match libc::WIFSIGNALED(status) {
            true if libc::WTERMSIG(status) == libc::SIGALRM => {
                Err(format!("the child of a fork hung for {PATIENCE} s"))
            }
            true => Err(format!("signal {} ended the child of a fork", libc::WTERMSIG(status))),
            false if libc::WEXITSTATUS(status) == 0 => Ok(()),
            false => {
                Err(format!("step {} in the child of a fork failed", libc::WEXITSTATUS(status)))
            }
        }
    }
}

/// Ends the child, with the number of the first step that went wrong, or 0.
fn in_child(inherited: Inherited) -> ! {
    // SAFETY: ends a child that hangs.
    unsafe { libc::alarm(PATIENCE) };
    let body = std::panic::AssertUnwindSafe(|| use_all(inherited));
    let code = std::panic::catch_unwind(body).unwrap_or(200);
    // SAFETY: ends the child, and runs no destructor of the parent's objects.
    unsafe { libc::_exit(code) }
}

fn is_forked<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Forked)
}

fn use_all(inherited: Inherited) -> i32 {
    let Inherited { resource, pool, stream, items } = inherited;
    let Ok(layout) = DeviceLayout::new(512) else { return 1 };
    if let Some(resource) = &resource
        && !is_forked(resource.allocate(&stream, layout))
    {
        return 2;
    }
    if let Some(pool) = &pool {
        if !is_forked(pool.allocate(&stream, layout))
            || !is_forked(pool.trim(0))
            || !is_forked(pool.wait_and_trim(0))
        {
            return 3;
        }
        let _ = (pool.statistics(), format!("{pool:?}"));
    }
    let steps = [
        is_forked(stream.synchronize()),
        is_forked(stream.record()),
        is_forked(stream.detach()),
        items.iter().all(|item| is_forked(item.vec.to_vec())),
        items.iter().all(|item| is_forked(item.vec.ipc_handle())),
    ];
    if let Some(wrong) = steps.iter().position(|right| !right) {
        return 4 + wrong as i32;
    }
    // All of it leaks, and nobody is asked.
    drop((items, pool, resource, stream));
    0
}
