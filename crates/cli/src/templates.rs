//! Chat templates in processes of their own: `paceline template`, started by the front.
//!
//! Such a process has a limit on its memory and a stack of its own, and may lose both: it ends, the front tells whose
//! template it was, and starts another one when it is needed. It answers questions on its standard input until that is
//! closed, which happens however the front ends, and then ends at once, whatever it is at. It runs in a process group of
//! its own, so that the terminal's signals reach only the front.
//!
//! Owns: these processes, how many there are, and how long one may take. What is asked and answered is `server`'s.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use server::{MAX_TEMPLATE_ANSWER, TemplateHost, TemplateHostError, TemplateWriter};

use crate::memory;

/// Bytes that a process may take: sixty times the longest body of a request. Texts take a handful of times what they are
/// long, and only nests of numbers and lists take more.
const MEMORY: usize = 1 << 30;
/// Its stack: what the main thread of a program has on most systems. Templates that call themselves need some of it.
const STACK: usize = 8 << 20;
/// How long a text may take, with the wait for a process: the longest conversations take well below a second.
const LIMIT: Duration = Duration::from_secs(10);
/// Processes at once: most texts take less than a millisecond, and a long one must not hold up all others.
const PLACES: usize = 2;

/// Runs templates in processes of its own.
pub(crate) struct Templates {
    program: PathBuf,
    args: &'static [&'static str],
    limit: Duration,
    room: Mutex<Room>,
    /// Somebody has left the room.
    left: Condvar,
}

/// Who works, and who waits for work.
#[derive(Default)]
struct Room {
    idle: Vec<Worker>,
    busy: usize,
}

impl Templates {
    /// Starts nothing yet. `program` is this program's file.
    pub(crate) fn new(program: PathBuf) -> Self {
        Self::of(program, &["template"], LIMIT)
    }

    fn of(program: PathBuf, args: &'static [&'static str], limit: Duration) -> Self {
        Self { program, args, limit, room: Mutex::default(), left: Condvar::new() }
    }

    /// Waits for a place; a process that lives, if one waits for work.
    fn enter(&self, by: Instant) -> Result<(Place<'_>, Option<Worker>), TemplateHostError> {
        let room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |room: &mut Room| room.busy == PLACES;
        let waited = self.left.wait_timeout_while(room, by.saturating_duration_since(now()), is_full);
        let (mut room, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && is_full(&mut room) {
            return Err(TemplateHostError::Busy);
        }
        room.busy += 1;
        let place = Place(self);
        room.idle.retain_mut(Worker::lives);
        let worker = room.idle.pop();
        Ok((place, worker))
    }
}

impl TemplateHost for Templates {
    fn ask(&self, question: Vec<u8>) -> Result<Vec<u8>, TemplateHostError> {
        let by = now() + self.limit;
        let (place, worker) = self.enter(by)?;
        let mut worker = worker
            .map_or_else(|| Worker::start(&self.program, self.args), Ok)
            .map_err(TemplateHostError::NotStarted)?;
        // Whoever does not answer is given up: it ends when it is dropped here.
        let answer = worker.ask(question, by).map_err(|error| match error {
            RecvTimeoutError::Timeout => TemplateHostError::TooLong { limit: self.limit },
            RecvTimeoutError::Disconnected => TemplateHostError::Ended { memory: MEMORY },
        })?;
        place.keep(worker);
        Ok(answer)
    }
}

impl fmt::Debug for Templates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Templates").field("program", &self.program).finish_non_exhaustive()
    }
}

/// A place in the room, until it is dropped.
struct Place<'a>(&'a Templates);

impl Place<'_> {
    /// Leaves a process behind that may be asked again.
    fn keep(self, worker: Worker) {
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner).idle.push(worker);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner).busy -= 1;
        self.0.left.notify_one();
    }
}

/// A process, and the thread that speaks with it; both end when this is dropped.
struct Worker {
    child: Child,
    questions: SyncSender<Vec<u8>>,
    answers: Receiver<Vec<u8>>,
}

impl Worker {
    fn start(program: &PathBuf, args: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(program);
        // What it says when it ends is about memory; the front says it better.
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Nobody would read it, and looking names up takes seconds.
        command.env("RUST_BACKTRACE", "0");
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(mut input), Some(mut output)) = pipes else { unreachable!("both are piped") };
        let (questions, to_ask) = mpsc::sync_channel::<Vec<u8>>(1);
        let (answered, answers) = mpsc::sync_channel(1);
        // A process that is stopped or busy may leave a pipe full or empty for ever; whoever waits for it here must not.
        let speak = move || {
            for question in to_ask {
                let answer = write_frame(&mut input, &question)
                    .and_then(|()| read_frame(&mut output, MAX_TEMPLATE_ANSWER));
                let Ok(Some(answer)) = answer else { return };
                if answered.send(answer).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("template".to_owned()).spawn(speak).inspect_err(|_| {
            // Nobody would ever end it.
            let _ = child.kill();
            let _ = child.wait();
        })?;
        Ok(Self { child, questions, answers })
    }

    fn ask(&mut self, question: Vec<u8>, by: Instant) -> Result<Vec<u8>, RecvTimeoutError> {
        self.questions.send(question).map_err(|_| RecvTimeoutError::Disconnected)?;
        self.answers.recv_timeout(by.saturating_duration_since(now()))
    }

    fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `paceline template`: answers what the front asks, until it has gone.
pub(crate) fn run() -> anyhow::Result<()> {
    memory::limit(MEMORY).context("could not limit this process's memory")?;
    let (asked, questions) = mpsc::sync_channel::<Vec<u8>>(1);
    // Were it to end alone, the front would wait for an answer.
    std::panic::set_hook(Box::new(|_| std::process::abort()));
    let answer = move || {
        let mut writer = TemplateWriter::default();
        for question in questions {
            // Standard output is not locked while a template runs: the end of the process locks it, too.
            let answer = writer.answer(question);
            if write_frame(&mut io::stdout().lock(), &answer).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("template".to_owned())
        .stack_size(STACK)
        .spawn(answer)
        .context("could not start the thread that runs templates")?;
    let mut input = io::stdin().lock();
    while let Some(question) = read_frame(&mut input, MEMORY)? {
        asked.send(question).map_err(|_| anyhow!("the front does not listen any more"))?;
    }
    Ok(())
}

/// Bytes behind their number.
fn write_frame(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(bytes)?;
    to.flush()
}

/// As many bytes as were announced; none if there is nothing more.
fn read_frame(from: &mut impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = usize::try_from(u64::from_le_bytes(length)).ok().filter(|&length| length <= most);
    let length = length.ok_or_else(|| io::Error::other("a frame is longer than it may be"))?;
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

#[expect(clippy::disallowed_methods, reason = "a driver's clock: it decides how long somebody is waited for")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Somebody who does as these arguments of a shell say.
    fn shell(args: &'static [&'static str], limit: Duration) -> Templates {
        Templates::of("/bin/sh".into(), args, limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_comes_back_whole_and_the_process_is_asked_again() {
        let templates = shell(&["-c", "exec cat"], LONG);
        // What answers before it has heard all must fit into the pipes.
        for question in [vec![], vec![7; 100_000], vec![1]] {
            assert_eq!(templates.ask(question.clone()).unwrap(), question);
        }
        let room = templates.room.lock().unwrap();
        assert_eq!((room.idle.len(), room.busy), (1, 0));
    }

    #[test]
    fn who_asks_at_the_same_time_waits_for_a_place() {
        let templates = shell(&["-c", "exec cat"], LONG);
        thread::scope(|scope| {
            for from in 0..8_u8 {
                let templates = &templates;
                scope.spawn(move || assert_eq!(templates.ask(vec![from; 100_000]).unwrap(), [from; 100_000]));
            }
        });
        let room = templates.room.lock().unwrap();
        assert!((1..=PLACES).contains(&room.idle.len()), "{}", room.idle.len());
        assert_eq!(room.busy, 0);
    }

    #[test]
    fn a_process_that_ends_is_told_and_replaced() {
        let templates = shell(&["-c", "exit 1"], LONG);
        for _ in 0..3 {
            let error = templates.ask(vec![1]).unwrap_err();
            assert!(matches!(error, TemplateHostError::Ended { .. }), "{error:?}");
        }
        assert_eq!(templates.room.lock().unwrap().busy, 0);
        let templates = shell(&["-c", "exec cat"], LONG);
        templates.ask(vec![1]).unwrap();
        let mut room = templates.room.lock().unwrap();
        let child = &mut room.idle[0].child;
        child.kill().unwrap();
        child.wait().unwrap();
        drop(room);
        assert_eq!(templates.ask(vec![2]).unwrap(), [2]);
    }

    #[test]
    fn a_process_that_does_not_answer_in_time_is_ended() {
        let templates = shell(&["-c", "exec sleep 600"], Duration::from_millis(50));
        // More than fits into a pipe that nobody reads.
        let error = templates.ask(vec![1; 1 << 20]).unwrap_err();
        assert!(matches!(error, TemplateHostError::TooLong { .. }), "{error:?}");
        let room = templates.room.lock().unwrap();
        assert_eq!((room.idle.len(), room.busy), (0, 0));
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let error = Templates::new("/nowhere/paceline".into()).ask(vec![1]).unwrap_err();
        assert!(matches!(error, TemplateHostError::NotStarted(_)), "{error:?}");
    }

    #[test]
    fn a_length_that_nobody_would_send_is_refused() {
        let frame = [u64::MAX.to_le_bytes().as_slice(), b"text"].concat();
        assert!(read_frame(&mut frame.as_slice(), 100).is_err());
        assert!(read_frame(&mut [3, 0].as_slice(), 100).unwrap().is_none());
    }
}
