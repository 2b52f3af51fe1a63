//! Logs of which something goes wrong: files shared or removed, and writers that use their own log.

use crate::support;
use aquifer::{
    CudaResource, DeviceLayout, DeviceResource, ErrorKind, Stream,
    mr::{LogFormat, LoggingAdaptor},
};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

/// A folder of the test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aquifer-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pairs(resource: &dyn DeviceResource, stream: &Stream, count: usize) {
    for _ in 0..count {
        let block = resource.allocate(stream, DeviceLayout::new(256).unwrap()).unwrap();
        // SAFETY: allocated above on this stream; nothing uses it.
        unsafe { resource.deallocate(stream, block) };
    }
}

#[test]
fn two_logs_do_not_share_a_file() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let folder = Folder::new("shared");
    let path = folder.0.join("log.csv");
    std::fs::write(&path, "an old log, which is longer than the header of a new one\n").unwrap();
    let first = LoggingAdaptor::new(CudaResource::new(&device), &path).unwrap();
    pairs(&first, &stream, 5);
    first.flush().unwrap();
    let other_name = folder.0.join("..").join(folder.0.file_name().unwrap()).join("log.csv");
    let mut names = vec![path.clone(), other_name];
    #[cfg(unix)]
    {
        let (soft, hard) = (folder.0.join("soft.csv"), folder.0.join("hard.csv"));
        std::os::unix::fs::symlink(&path, &soft).unwrap();
        std::fs::hard_link(&path, &hard).unwrap();
        names.extend([soft, hard]);
    }
    for name in &names {
        let error = LoggingAdaptor::new(CudaResource::new(&device), name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{}", name.display());
        assert!(error.to_string().contains("another log"), "{error}");
    }
    pairs(&first, &stream, 5);
    drop(first);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("Thread,"), "the old one was emptied");
    assert_eq!(text.lines().count(), 1 + 2 * 10, "what others tried took nothing: {text}");
    for name in &names {
        drop(LoggingAdaptor::new(CudaResource::new(&device), name).unwrap());
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
}

/// Another process is as whoever opened the file by itself.
#[cfg(unix)]
#[test]
fn a_log_takes_no_file_that_another_process_logs_to() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let folder = Folder::new("locked");
    let path = folder.0.join("log.csv");
    std::fs::write(&path, "theirs").unwrap();
    let theirs = std::fs::File::open(&path).unwrap();
    theirs.lock().unwrap();
    for _ in 0..2 {
        let error = LoggingAdaptor::new(CudaResource::new(&device), &path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("another process"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    theirs.unlock().unwrap();
    let ours = LoggingAdaptor::new(CudaResource::new(&device), &path).unwrap();
    pairs(&ours, &stream, 5);
    assert!(theirs.try_lock().is_err(), "ours while the log lives");
    drop(ours);
    theirs.try_lock().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 11);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_may_be_shared() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let [one, other] =
        [(); 2].map(|()| LoggingAdaptor::new(CudaResource::new(&device), "/dev/null").unwrap());
    for logged in [one, other] {
        pairs(&logged, &stream, 5);
        logged.flush().unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_is_removed_is_an_error() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let folder = Folder::new("removed");
    for format in [LogFormat::Rmm, LogFormat::Events] {
        for more in [0, 5] {
            let path = folder.0.join("log.csv");
            let options = LoggingAdaptor::builder(CudaResource::new(&device));
            let logged = options.path(&path).format(format).build().unwrap();
            pairs(&logged, &stream, 5);
            logged.flush().unwrap();
            std::fs::remove_file(&path).unwrap();
            // What is written after that is not needed to find out.
            pairs(&logged, &stream, more);
            let error = logged.flush().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("removed"), "{error}");
            pairs(&logged, &stream, 5);
        }
    }
}

/// Waits in its first write, and uses the log itself in its second.
struct Own {
    gate: Arc<(Mutex<bool>, Condvar)>,
    log: Arc<Mutex<Option<LoggingAdaptor<CudaResource>>>>,
    stream: Stream,
    text: Arc<Mutex<Vec<u8>>>,
    writes: usize,
}

const OWN: usize = 8000;

impl Write for Own {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (open, opened) = &*self.gate;
        drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        self.text.lock().unwrap().extend_from_slice(bytes);
        self.writes += 1;
        let log = self.log.lock().unwrap().clone();
        if let (2, Some(log)) = (self.writes, log) {
            pairs(&log, &self.stream, OWN);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Each row is in the text or among those which the error counts.
#[test]
fn a_writer_that_uses_its_own_log_loses_no_row_uncounted() {
    const BEFORE: usize = 1500;
    let device = support::device();
    let stream = device.new_stream().unwrap();
    for format in [LogFormat::Rmm, LogFormat::Events] {
        let own = Own {
            gate: Arc::default(),
            log: Arc::default(),
            stream: stream.clone(),
            text: Arc::default(),
            writes: 0,
        };
        let (gate, log, text) = (own.gate.clone(), own.log.clone(), own.text.clone());
        let logged = LoggingAdaptor::builder(CudaResource::new(&device))
            .writer(Box::new(own))
            .format(format)
            .capacity(8192)
            .build()
            .unwrap();
        *log.lock().unwrap() = Some(logged.clone());
        // More text than goes out at once waits, so that the writer has more in hand in between.
        pairs(&logged, &stream, BEFORE);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        logged.flush().unwrap_err();
        // Again, for what the writer itself added meanwhile.
        let error = logged.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let said = error.to_string();
        assert!(said.contains("used the log itself"), "{said}");
        let missing: usize =
            said.split(|c: char| !c.is_ascii_digit()).rev().find_map(|n| n.parse().ok()).unwrap();
        let written = String::from_utf8(text.lock().unwrap().clone()).unwrap().lines().count() - 1;
        assert_eq!(written + missing, 2 * (BEFORE + OWN), "{written} and {missing}");
        log.lock().unwrap().take();
    }
}

/// Panics as it goes, with something that panics when it is dropped.
struct Last;

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("thrown by what was thrown"));
    }
}

impl Write for Last {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new(Bomb));
    }
}

#[test]
fn a_writer_that_panics_as_it_goes_does_so_alone() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let options = LoggingAdaptor::builder(CudaResource::new(&device));
    let logged = options.writer(Box::new(Last)).build().unwrap();
    pairs(&logged, &stream, 5);
    logged.flush().unwrap();
    drop(logged);
}

/// Its error panics when it is told.
struct Wordless;

impl std::error::Error for Wordless {}

impl std::fmt::Debug for Wordless {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::panic::resume_unwind(Box::new(Bomb));
    }
}

impl std::fmt::Display for Wordless {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::panic::resume_unwind(Box::new(Bomb));
    }
}

impl Write for Wordless {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other(Wordless))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_error_that_panics_when_it_is_told_does_not_end_the_writing_thread() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let options = LoggingAdaptor::builder(CudaResource::new(&device));
    let logged = options.writer(Box::new(Wordless)).build().unwrap();
    pairs(&logged, &stream, 5);
    let (done, waits) = std::sync::mpsc::channel();
    // On a thread of its own: where nobody writes any more, this never returns.
    std::thread::spawn(move || done.send(logged.flush().map_err(|error| error.kind())));
    let flushed = waits.recv_timeout(std::time::Duration::from_secs(10));
    assert_eq!(flushed.expect("the writing thread has ended").unwrap_err(), ErrorKind::Io);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_a_count() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let logged = LoggingAdaptor::new(CudaResource::new(&device), "/dev/full").unwrap();
    pairs(&logged, &stream, 50);
    let error = logged.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("it lacks 100 rows"), "{error}");
    pairs(&logged, &stream, 5);
    let error = logged.flush().unwrap_err();
    assert!(error.to_string().contains("it lacks 110 rows"), "{error}");
}
