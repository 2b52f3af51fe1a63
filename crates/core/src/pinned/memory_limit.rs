//! How much memory this process may still touch, by the system and by its control groups.
//!
//! A page past a group's limit is no error of a call but the end of a process. Other programs may take the memory first,
//! so a number is an estimate.

use crate::error::{Error, ErrorKind, Result};
use crate::impls::Count;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::{fmt, fs};

/// The most bytes that the system is asked about at once.
const PART: usize = 1 << 30;

/// Refuses what would touch so many fresh bytes, if the process may not. `what` begins the error.
pub(super) fn require(bytes: u64, what: impl fmt::Display) -> Result<()> {
    match left() {
        Some(left) if left < bytes => {
            let left = Count(usize::try_from(left).unwrap_or(usize::MAX), "byte");
            let message = format!("{what}: the limit of memory of this process leaves {left}");
            let advice = "ask for less, free memory, or raise the limit of the control group or the container";
            Err(Error::new(ErrorKind::OutOfMemory, message).with_advice(advice))
        }
        _ => Ok(()),
    }
}

/// The bytes of a range that have no page yet, as those of a `vec![0; n]` that nobody has written.
pub(super) fn absent(base: NonNull<u8>, bytes: usize) -> u64 {
    // SAFETY: it reads a number of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = base.addr().get() / page * page;
    let end = base.addr().get().saturating_add(bytes);
    let mut there = vec![0_u8; PART.min(end - start).div_ceil(page)];
    let mut absent = 0;
    for part in (start..end).step_by(PART) {
        let pages = (end - part).min(PART).div_ceil(page);
        let address = base.as_ptr().with_addr(part).cast();
        // SAFETY: it reads no memory of the range, and writes a byte for each page of it.
        let asked = unsafe { libc::mincore(address, pages * page, there.as_mut_ptr()) };
        if asked == 0 {
            absent += there[..pages].iter().filter(|page| **page & 1 == 0).count() * page;
        }
    }
    absent as u64
}

/// Bytes that may still be touched. `None` if nothing tells.
fn left() -> Option<u64> {
    let of_groups = groups().and_then(|groups| left_of(Path::new("/sys/fs/cgroup"), &groups));
    [of_groups, available()].into_iter().flatten().min()
}

/// What the system can give, with the place to which it can swap other memory.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let swap = kibibytes("SwapFree:").unwrap_or(0);
    kibibytes("MemAvailable:")?.checked_add(swap)?.checked_mul(1024)
}

fn groups() -> Option<String> {
    fs::read_to_string("/proc/self/cgroup").ok()
}

/// What the groups of this text, `/proc/self/cgroup`, leave. `root` has the hierarchies.
fn left_of(root: &Path, groups: &str) -> Option<u64> {
    let mut left = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // Version 2 has one hierarchy, without a name. In version 1 memory has one of its own.
        let (hierarchy, names) = match controllers {
            "" => (root.to_owned(), ["memory.max", "memory.current", ""]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_"])
            }
            _ => continue,
        };
        let mut group: PathBuf = hierarchy.join(path.trim_start_matches('/'));
        // A group above limits, too. In a container the path may be the host's, and what it names be missing.
        loop {
            let of_group = left_of_group(&group, names);
            left = [left, of_group].into_iter().flatten().min();
            if group == hierarchy || !group.pop() {
                break;
            }
        }
    }
    left
}

/// What one group leaves. Pages of files, and the kernel's own of them, go when others are needed. `prefix` is that of
/// their counters.
fn left_of_group(group: &Path, [limit, usage, prefix]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, usage) = (number(limit)?, number(usage)?);
    let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of_files = statistics.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let is_of_files = matches!(
            name.strip_prefix(prefix)?,
            "inactive_file" | "active_file" | "slab_reclaimable"
        );
        is_of_files.then(|| value.trim().parse::<u64>().ok())?
    });
    let files = of_files.fold(0, u64::saturating_add);
    Some(limit.saturating_sub(usage.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("aquifer-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn group(&self, path: &str, files: &[(&str, &str)]) {
            let group = self.0.join(path);
            fs::create_dir_all(&group).unwrap();
            for (name, text) in files {
                fs::write(group.join(name), text).unwrap();
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_least_of_a_group_and_those_above_it_is_left() {
        let root = Folder::new("limit-2");
        root.group("", &[]);
        root.group("a", &[("memory.max", "1000\n"), ("memory.current", "400\n")]);
        let stat = "anon 500\ninactive_file 200\nactive_file 100\nfile 400\n";
        root.group(
            "a/b",
            &[("memory.max", "900"), ("memory.current", "800"), ("memory.stat", stat)],
        );
        root.group("a/b/c", &[("memory.max", "max"), ("memory.current", "1")]);
        for (path, left) in [("a", 600), ("a/b", 400), ("a/b/c", 400), ("a/b/c/gone", 400)] {
            assert_eq!(left_of(&root.0, &format!("0::/{path}\n")), Some(left), "{path}");
        }
        assert_eq!(left_of(&root.0, "0::/\n"), None);
        assert_eq!(left_of(&root.0, "nothing of the kind"), None);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let root = Folder::new("limit-1");
        let files = [("memory.limit_in_bytes", "5000"), ("memory.usage_in_bytes", "6000")];
        root.group("memory/job", &files);
        let stat = ("memory.stat", "inactive_file 1\ntotal_inactive_file 2500\nactive_file 9\n");
        root.group("memory/job/step", &[files[0], files[1], stat]);
        assert_eq!(left_of(&root.0, "5:cpu,memory:/job\n4:pids:/job\n"), Some(0));
        assert_eq!(left_of(&root.0, "5:memory:/job/step"), Some(0));
        root.group("memory/job", &[("memory.usage_in_bytes", "100")]);
        assert_eq!(left_of(&root.0, "5:memory:/job/step"), Some(1500));
    }

    #[test]
    fn pages_that_nobody_has_touched_are_absent() {
        // Whole pages that no other buffer has a part of.
        let page = 4096;
        let mut memory = vec![0_u8; 64 << 20];
        let base = memory.as_mut_ptr();
        let skip = base.align_offset(page);
        let start = NonNull::from(&mut memory[skip]);
        let bytes = (32 << 20) - page;
        assert_eq!(absent(start, bytes), bytes as u64);
        for touched in 1..=5 {
            // SAFETY: inside of the vector.
            unsafe { base.add(skip + (touched - 1) * 3 * page).write(1) };
            let left = absent(start, bytes);
            // A huge page may have come for the first.
            assert!(left <= (bytes - touched * page) as u64, "{touched}: {left}");
        }
        memory.fill(1);
        assert_eq!(absent(start, bytes), 0);
        assert_eq!(absent(start, 1), 0);
    }

    #[test]
    fn what_is_not_left_is_refused() {
        require(0, "touching nothing").unwrap();
        let error = require(u64::MAX, "touching all").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().starts_with("touching all: the limit of memory"), "{error}");
    }

    #[test]
    fn this_machine_tells_what_it_has() {
        let left = left().unwrap();
        assert!(left > 1 << 20 && left < 1 << 50, "{left}");
    }
}
