//! A descriptor and a message over a Unix socket (`SCM_RIGHTS`).

use crate::error::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Descriptors that are taken from one message, to be closed if there are too many. The system closes those for
/// which there is no room.
const MOST_DESCRIPTORS: usize = 8;

/// `MSG_NOSIGNAL`, without which a socket whose other end is gone ends a program that has not asked otherwise.
#[cfg(not(target_vendor = "apple"))]
const SEND: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const SEND: SendFlags = SendFlags::empty();

/// `MSG_CMSG_CLOEXEC`, so that the descriptors do not go to programs that this one starts.
#[cfg(not(target_vendor = "apple"))]
const RECEIVE: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(target_vendor = "apple")]
const RECEIVE: RecvFlags = RecvFlags::empty();

/// The thing that goes over a socket, for messages.
pub(super) struct Payload {
    /// Its name, with the article.
    pub(super) what: &'static str,
    /// The function by which the other process sends it.
    pub(super) sender: &'static str,
}

/// Sends a message with a descriptor, which goes with its first byte.
pub(super) fn send_descriptor<const N: usize>(
    socket: &UnixStream,
    message: &[u8; N],
    descriptor: BorrowedFd<'_>,
    payload: &Payload,
) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let first = [IoSlice::new(message)];
    let mut sent = retried(|| sendmsg(socket, &first, &mut control, SEND));
    let mut all = 0;
    loop {
        match sent {
            Ok(bytes) => all += bytes,
            Err(error) => return Err(payload.failed("sending", error)),
        }
        let rest = message.get(all..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        sent = retried(|| send(socket, rest, SEND));
    }
}

/// Waits for a message with one descriptor that begins with `magic`. Bytes that begin otherwise are
/// refused when they come, since the sender may send no more, and keep the socket open.
pub(super) fn receive_descriptor<const N: usize>(
    socket: &UnixStream,
    magic: &[u8],
    payload: &Payload,
) -> Result<([u8; N], OwnedFd)> {
    let mut message = [0; N];
    let mut descriptors = Vec::new();
    let mut all = 0;
    while all < N {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retried(|| {
            let mut rest = [IoSliceMut::new(&mut message[all..])];
            recvmsg(socket, &mut rest, &mut control, RECEIVE).map(|received| received.bytes)
        });
        for received in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = received {
                descriptors.extend(received);
            }
        }
        match received {
            Ok(0) => return Err(payload.missing("the other end was closed")),
            Ok(bytes) => all += bytes,
            Err(Errno::AGAIN) => {
                return Err(payload.missing("nothing came in the time that the socket waits"));
            }
            Err(error) => return Err(payload.failed("receiving", error)),
        }
        if message.iter().zip(magic).take(all).any(|(came, expected)| came != expected) {
            return Err(payload.missing("another message came"));
        }
    }
    let count = descriptors.len();
    match <[OwnedFd; 1]>::try_from(descriptors) {
        Ok([descriptor]) => {
            close_on_exec(&descriptor);
            Ok((message, descriptor))
        }
        // Dropped with the error, which closes them.
        Err(_) => Err(payload.missing(&format!("the message had {count} descriptors, not one"))),
    }
}

/// Sets the flag where a flag of the call does not do so already.
fn close_on_exec(descriptor: &OwnedFd) {
    if cfg!(target_vendor = "apple") {
        let _ = rustix::io::fcntl_setfd(descriptor.as_fd(), rustix::io::FdFlags::CLOEXEC);
    }
}

/// Makes a call again that a signal interrupted.
fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

impl Payload {
    fn failed(&self, doing: &str, error: Errno) -> Error {
        let advice =
            "see that the other process lives, and that the socket has no timeout or a longer one";
        let what = format!("{doing} {} over a socket: {error}", self.what);
        Error::new(ErrorKind::Io, what).with_advice(advice)
    }

    pub(super) fn missing(&self, why: &str) -> Error {
        let Self { what, sender } = self;
        Error::new(ErrorKind::Io, format!("{what} was to come over a socket: {why}"))
            .with_advice(format!("have the other process call {sender} on its end"))
    }
}
