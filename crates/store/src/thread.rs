//! The store's thread: jobs come in through bounded queues and are answered by calls, so that nobody waits for a disk.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::folder::{Folder, OpenError, Wrote};
use crate::form::Name;

/// Reads that may wait: above the sequences that one engine runs at a time.
const MAX_READS: usize = 1024;
/// Writes that may wait.
const MAX_WRITES: usize = 256;
/// Bytes that may wait to be written; a single one may exceed it.
const MAX_WRITE_BYTES: usize = 512 << 20;

/// What became of bytes that were to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// They are in the folder.
    Kept,
    /// Not this time: too much waits already, or they are larger than the whole budget.
    Skipped,
    /// The folder takes nothing any more, because its disk is full or failing. What is there can still be read.
    Failed,
}

/// A store and its thread, which ends with the last handle, after what waits.
#[derive(Clone)]
pub struct Store {
    _life: Arc<Life>,
    shared: Arc<Shared>,
}

/// Tells the thread to end when it goes.
struct Life(Arc<Shared>);

struct Shared {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    folder: Folder,
}

#[derive(Default)]
struct Jobs {
    reads: VecDeque<Read>,
    writes: VecDeque<Write>,
    write_bytes: usize,
    /// Nothing is written any more.
    failed: bool,
    ending: bool,
}

struct Read {
    name: Name,
    done: Box<dyn FnOnce(Option<Bytes>) + Send>,
}

struct Write {
    name: Name,
    task: Task,
}

enum Task {
    Keep(Vec<u8>, Bytes, Box<dyn FnOnce(Written) + Send>),
    Touch,
    Remove,
}

enum Job {
    Read(Read),
    Write(Write),
}

impl Task {
    fn bytes(&self) -> usize {
        match self {
            Self::Keep(head, body, _) => head.len() + body.len(),
            Self::Touch | Self::Remove => 0,
        }
    }
}

impl Store {
    /// Opens a folder, makes it if need be, and starts the thread. Whatever is in the folder counts as the store's.
    ///
    /// # Errors
    /// If the folder cannot be made or read.
    ///
    /// # Panics
    /// If the operating system refuses another thread.
    pub fn open(folder: PathBuf, budget: u64) -> Result<Self, OpenError> {
        let folder = Folder::open(folder, budget)?;
        let shared = Arc::new(Shared { jobs: Mutex::default(), arrived: Condvar::new(), folder });
        let worker = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || worker.serve_on())
            .expect("a process that starts can have one more thread");
        Ok(Self { _life: Arc::new(Life(Arc::clone(&shared))), shared })
    }

    /// Keeps `head` and `body`, one behind the other, under a name. `done` is called once, on the store's thread or on this
    /// one, and must not block.
    pub fn write(&self, name: Name, head: Vec<u8>, body: Bytes, done: impl FnOnce(Written) + Send + 'static) {
        let task = Task::Keep(head, body, Box::new(done));
        let mut jobs = self.shared.lock();
        let bytes = task.bytes();
        let is_full = !jobs.writes.is_empty()
            && (jobs.writes.len() >= MAX_WRITES || jobs.write_bytes + bytes > MAX_WRITE_BYTES);
        let refused = match (jobs.failed, is_full) {
            (true, _) => Some(Written::Failed),
            (false, true) => Some(Written::Skipped),
            (false, false) => None,
        };
        match refused {
            None => {
                jobs.write_bytes += bytes;
                jobs.writes.push_back(Write { name, task });
                drop(jobs);
                self.shared.arrived.notify_one();
            }
            Some(refused) => {
                drop(jobs);
                task.refuse(refused);
            }
        }
    }

    /// Gives what was kept under a name, and counts it as used. `done` is called once, on the store's thread or on this
    /// one, and must not block.
    pub fn read(&self, name: Name, done: impl FnOnce(Option<Bytes>) + Send + 'static) {
        let mut jobs = self.shared.lock();
        if jobs.reads.len() >= MAX_READS {
            drop(jobs);
            return done(None);
        }
        jobs.reads.push_back(Read { name, done: Box::new(done) });
        drop(jobs);
        self.shared.arrived.notify_one();
    }

    /// Counts something as used.
    pub fn touch(&self, name: Name) {
        self.small(Write { name, task: Task::Touch });
    }

    /// Forgets something.
    pub fn remove(&self, name: Name) {
        self.small(Write { name, task: Task::Remove });
    }

    /// All that has an ending, the one used last comes last. Blocks: for the start of a process.
    #[must_use]
    pub fn read_all(&self, ending: &str) -> Vec<Bytes> {
        let files = self.shared.folder.files(ending).unwrap_or_default();
        files.iter().filter_map(|file| self.shared.folder.read(file)).collect()
    }

    /// What is small and may be forgotten when too much waits.
    fn small(&self, write: Write) {
        let mut jobs = self.shared.lock();
        if jobs.writes.len() < MAX_WRITES {
            jobs.writes.push_back(write);
            drop(jobs);
            self.shared.arrived.notify_one();
        }
    }
}

impl Task {
    fn refuse(self, written: Written) {
        if let Self::Keep(_, _, done) = self {
            done(written);
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.lock().ending = true;
        self.0.arrived.notify_one();
    }
}

impl Shared {
    /// The queues. A panic while they were held leaves them usable: every change is complete in itself.
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A panic is a bug that costs what it was about, and no more: whoever asked hears of that by the way back, which is
    /// dropped, and those who wait are answered.
    fn serve_on(&self) {
        while catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            tracing::error!("the store's thread panicked and goes on");
        }
    }

    fn serve(&self) {
        while let Some(job) = self.next() {
            match job {
                // Somebody waits for it.
                Job::Read(Read { name, done }) => {
                    let file = name.file();
                    let bytes = self.folder.read(&file);
                    let is_here = bytes.is_some();
                    done(bytes);
                    if is_here {
                        self.folder.touch(&file);
                    }
                }
                Job::Write(Write { name, task: Task::Keep(head, body, done) }) => {
                    done(self.write(&name, &head, &body));
                }
                Job::Write(Write { name, task: Task::Touch }) => self.folder.touch(&name.file()),
                Job::Write(Write { name, task: Task::Remove }) => self.folder.remove(&name.file()),
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(read) = jobs.reads.pop_front() {
                return Some(Job::Read(read));
            }
            if let Some(write) = jobs.writes.pop_front() {
                jobs.write_bytes -= write.task.bytes();
                return Some(Job::Write(write));
            }
            if jobs.ending {
                return None;
            }
            jobs = self.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&self, name: &Name, head: &[u8], body: &[u8]) -> Written {
        if self.lock().failed {
            return Written::Failed;
        }
        match self.folder.write(name, &[head, body]) {
            Ok(Wrote::Whole) => Written::Kept,
            Ok(Wrote::TooLarge) => Written::Skipped,
            Err(error) => {
                tracing::warn!("nothing more is stored: {error}");
                self.lock().failed = true;
                Written::Failed
            }
        }
    }
}
