//! The log file: its lines, where it is, and that nothing of it is lost.

use super::{MIB, child, give, hurry, is_child, is_in, pool_of, support, take};
use aquifer::debug_log::DebugLog;
use aquifer::{ErrorKind, mr::MissStep};
use std::path::PathBuf;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

/// A file of the test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aquifer-{}-{name}.log", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Grows a pool, which is one event at `DEBUG`.
fn work() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let pool = pool_of(&device, &[MissStep::GrowToMaximum], MIB);
    let block = take(&pool, &stream, 1000);
    give(&pool, &stream, block);
}

#[test]
fn a_line_has_time_level_thread_target_message_and_fields() {
    let scratch = Scratch::new("lines");
    std::fs::write(&scratch.0, "what was there\n").unwrap();
    let log = DebugLog::open(&scratch.0).unwrap();
    assert_eq!(log.path(), scratch.0);
    let subscriber = tracing_subscriber::registry().with(log.layer());
    tracing::subscriber::with_default(subscriber, || {
        work();
        tracing::error!(target: "somebody::else", "not ours");
        tracing::error!(target: "aquifer_somebody", "nor that of a crate of such a name");
        tracing::error!(target: "aquifer::test", "two\nlines\r");
        tracing::trace!(target: "aquifer::test", "more than was asked for");
    });
    let text = scratch.text();
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.remove(0), "what was there");
    let last = lines.pop().unwrap();
    assert!(last.ends_with(r"aquifer::test: two\nlines\r"), "{last}");
    assert!(text.ends_with('\n'));
    let messages: Vec<_> =
        lines.iter().map(|line| line.split_once("aquifer::pool: ").unwrap().1).collect();
    if !is_in(Level::DEBUG) {
        assert!(messages.is_empty());
        return;
    }
    let [made, grown, ended] = messages[..] else { panic!("{text}") };
    assert!(made.starts_with("pool made pool=") && ended.starts_with("pool ended pool="));
    assert!(grown.starts_with("pool grew pool="));
    assert!(grown.contains(&format!(" asked=1024 bytes={MIB} reserved={MIB} elapsed_ns=")));
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    let shape: String =
        words[0].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
    assert_eq!((words[1], &words[2][..9], words[3]), ("DEBUG", "ThreadId(", "aquifer::pool:"));
}

#[test]
fn the_level_is_the_users() {
    let scratch = Scratch::new("level");
    let log = DebugLog::open(&scratch.0).unwrap().level(Level::WARN);
    let subscriber = tracing_subscriber::registry().with(log.layer());
    tracing::subscriber::with_default(subscriber, work);
    assert_eq!(scratch.text(), "");
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_with_its_path() {
    let path = std::env::temp_dir().join("aquifer-no-such-folder").join("debug.log");
    let error = DebugLog::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    let text = error.to_string();
    assert!(text.contains(&*path.to_string_lossy()) && text.contains("os error 2"), "{text}");
}

#[test]
fn the_environment_names_the_file_and_an_exit_loses_nothing() {
    if is_child() {
        match DebugLog::init_from_env() {
            Ok(true) => {
                work();
                let again = DebugLog::init_from_env().unwrap_err();
                assert_eq!(again.kind(), ErrorKind::InvalidArgument);
            }
            Ok(false) => println!("no file"),
            Err(error) => println!("{:?}: {error}", error.kind()),
        }
        // Without a destructor or a handler.
        std::process::abort();
    }
    let name = "file::the_environment_names_the_file_and_an_exit_loses_nothing";
    let (ours, rmms) = (Scratch::new("ours"), Scratch::new("rmms"));
    let expect = |scratch: &Scratch| {
        let text = scratch.text();
        let ended = text.lines().filter(|line| line.contains("pool ended")).count();
        assert_eq!(ended, usize::from(is_in(Level::DEBUG)), "{text}");
    };
    assert!(!child(name, &[("RMM_DEBUG_LOG_FILE", &rmms.0)]).status.success());
    expect(&rmms);
    std::fs::remove_file(&rmms.0).unwrap();
    child(name, &[("RMM_DEBUG_LOG_FILE", rmms.0.as_path()), ("AQUIFER_DEBUG_LOG_FILE", &ours.0)]);
    expect(&ours);
    assert!(!rmms.0.exists());
    let said = |set: &[_]| String::from_utf8(child(name, set).stdout).unwrap();
    let neither = said(&[]);
    assert!(neither.contains("no file"), "{neither}");
    let nowhere = std::env::temp_dir().join("aquifer-no-such-folder").join("debug.log");
    let wrong = said(&[("AQUIFER_DEBUG_LOG_FILE", nowhere.as_path())]);
    assert!(wrong.contains("Environment") && wrong.contains("AQUIFER_DEBUG_LOG_FILE"), "{wrong}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_line_that_cannot_be_written_is_told_on_standard_error() {
    if is_child() {
        assert!(DebugLog::init_from_env().unwrap());
        tracing::error!(target: "aquifer::test", "a line that no disk has room for");
        return;
    }
    let name = "file::a_line_that_cannot_be_written_is_told_on_standard_error";
    let output = child(name, &[("AQUIFER_DEBUG_LOG_FILE", std::path::Path::new("/dev/full"))]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("No space left on device"), "{said}");
}

#[cfg(unix)]
#[test]
fn the_child_of_a_fork_writes_to_the_same_file() {
    let name = "file::the_child_of_a_fork_writes_to_the_same_file";
    let scratch = Scratch::new("forks");
    if !is_child() {
        let output = child(name, &[("AQUIFER_DEBUG_LOG_FILE", &scratch.0)]);
        assert!(output.status.success(), "{output:?}");
        let text = scratch.text();
        for who in ["parent", "child"] {
            let of = format!("aquifer::test: a line of the {who} end");
            let lines = text.lines().filter(|line| line.ends_with(&of)).count();
            assert!(lines >= 20, "{lines} of the {who}");
        }
        assert!(text.lines().all(|line| line.ends_with(" end")), "lines are whole");
        return;
    }
    use std::sync::atomic::{AtomicBool, Ordering};
    hurry();
    assert!(DebugLog::init_from_env().unwrap());
    let stop = AtomicBool::new(false);
    let codes: Vec<_> = std::thread::scope(|scope| {
        // At work whenever a child is made.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                tracing::info!(target: "aquifer::test", "a line of the parent end");
            }
        });
        let fork = |_| {
            // SAFETY: the child runs what is below, which is what it is about, and ends itself.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                hurry();
                tracing::info!(target: "aquifer::test", "a line of the child end");
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: waits for the child above.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            (waited == pid, status)
        };
        let codes = (0..20).map(fork).collect();
        stop.store(true, Ordering::Relaxed);
        codes
    });
    assert!(codes.iter().all(|code| *code == (true, 0)), "{codes:?}");
}
