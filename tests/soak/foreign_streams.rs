//! Streams of another library among the program's own. Their owner detaches and destroys them while
//! threads hold memory that is at home on them.

use crate::player::Player;
use crate::shared::{Shared, Step, lock, unexpected};
use crate::support::foreign::Foreign;
use aquifer::{ErrorKind, Stream};

/// A stream of another library, and what the program has of it.
pub(crate) type Theirs = (Foreign, Stream);

impl Shared {
    /// A stream of another library, which the program is to get.
    pub(crate) fn bring(&self) -> Step<Stream> {
        let foreign =
            Foreign::new(&self.device).map_err(unexpected("making another library's stream"))?;
        let stream = foreign.stream().map_err(unexpected("bringing a stream"))?;
        lock(&self.foreign).push((foreign, stream.clone()));
        Ok(stream)
    }

    /// The owner ends its streams, detached before.
    pub(crate) fn detach_all(&self) -> Step {
        for (foreign, stream) in std::mem::take(&mut *lock(&self.foreign)) {
            stream.detach().map_err(unexpected("detaching a stream at the end"))?;
            foreign.destroy().map_err(unexpected("destroying a stream that was detached"))?;
            self.count("streams detached at the end");
        }
        Ok(())
    }

    /// The owner ends its streams, which nothing of the program keeps any more.
    pub(crate) fn destroy_all(&self) -> Step {
        lock(&self.streams).clear();
        lock(&self.events).clear();
        for (foreign, stream) in std::mem::take(&mut *lock(&self.foreign)) {
            drop(stream);
            foreign.destroy().map_err(unexpected("destroying a stream that nobody keeps"))?;
            self.count("streams destroyed at the end");
        }
        Ok(())
    }
}

impl Player<'_> {
    /// A stream's owner has the program let go of it, and destroys it. Now and then the program goes on with what
    /// stands for it from then on.
    pub(crate) fn detach(&mut self) -> Step {
        let captured = *lock(&self.shared.captured);
        let Some((foreign, stream)) = self.theirs() else { return self.bring_one() };
        let id = stream.id();
        match stream.detach() {
            Ok(()) if captured == Some(id) => return Err("a stream left its capture".into()),
            Ok(()) => {}
            Err(error) if captured == Some(id) && error.kind() == ErrorKind::Capture => {
                self.shared.count("streams not detached in captures");
                lock(&self.shared.foreign).push((foreign, stream));
                return Ok(());
            }
            Err(error) => return Err(unexpected("detaching a stream")(error)),
        }
        self.says(|| format!("stream {id} is detached"));
        self.shared.count("streams detached");
        foreign.destroy().map_err(unexpected("destroying a stream that was detached"))?;
        if self.random.one_in(2) {
            let new = self.shared.bring()?;
            self.says(|| format!("stream {} comes for it", new.id()));
            self.replace(&stream, &new);
        }
        Ok(())
    }

    /// A detach in which a driver call may fail. Then the stream is as it was.
    pub(crate) fn try_to_detach(&mut self) -> Step {
        let Some((foreign, stream)) = self.theirs() else { return Ok(()) };
        match stream.detach() {
            Ok(()) => foreign.destroy().map_err(unexpected("destroying a stream")),
            Err(_) => {
                self.shared.count("streams not detached by a failure");
                lock(&self.shared.foreign).push((foreign, stream));
                Ok(())
            }
        }
    }

    fn theirs(&mut self) -> Option<Theirs> {
        let mut foreign = lock(&self.shared.foreign);
        let count = foreign.len();
        (count > 0).then(|| foreign.swap_remove(self.random.below(count)))
    }

    /// One more stream of another library, in the place of one of the program's.
    fn bring_one(&mut self) -> Step {
        let Some(old) = self.stream() else { return Ok(()) };
        let new = self.shared.bring()?;
        self.says(|| format!("stream {} of another library comes for {}", new.id(), old.id()));
        self.replace(&old, &new);
        Ok(())
    }
}
