//! What is counted of a line, so that one sees that runs are not idle.

/// Counters of the whole line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    /// Engine calls that served several sequences at once.
    pub(crate) shared_calls: u64,
    /// Engine calls that were stopped, since nobody wanted any of it.
    pub(crate) cancelled_calls: u64,
    /// Windows that a stage dropped before it computed them.
    pub(crate) dropped: u64,
    /// Engine calls on top of rows that should have been cut.
    pub(crate) spoiled_calls: u64,
    /// Tokens that tails have drafted.
    pub(crate) drafted: u64,
    pub(crate) outages: u64,
    /// Lines that were given up before they were up.
    pub(crate) abandoned: u64,
    /// What was broken.
    pub(crate) losses: Losses,
    /// How often other stages took over, or gave back.
    pub(crate) reshapes: u64,
    pub(crate) faults: u64,
    /// A hash of everything that happened and when.
    pub(crate) trace: u64,
}

/// Counters of what was broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Stages that died.
    pub(crate) deaths: u64,
    /// Of those, while a line was formed.
    pub(crate) deaths_forming: u64,
    /// Of those, while a prompt was on its way.
    pub(crate) deaths_prefilling: u64,
    /// Of those, while one waited for its store.
    pub(crate) deaths_restoring: u64,
    /// Of those, while a sequence was being closed.
    pub(crate) deaths_closing: u64,
    /// Stages that did nothing for less than they are given up for.
    pub(crate) naps: u64,
    /// Stages that did nothing for longer.
    pub(crate) freezes: u64,
    /// Of those, how many went on when others worked in a line without them.
    pub(crate) late_wakes: u64,
    /// Times that a spare took a seat.
    pub(crate) stand_ins: u64,
    /// Frames and hints of a line that is over, at a machine that had left it.
    pub(crate) late_frames: u64,
    /// Reports of a line that is over.
    pub(crate) late_reports: u64,
    /// Messages that came once more when their line was over.
    pub(crate) echoes: u64,
    /// Lines that were given up because a frame had come twice in them.
    pub(crate) disorders: u64,
    pub(crate) cuts: u64,
    /// Lines that came back with what they had held.
    pub(crate) came_back: u64,
    /// Lines whose later stages did.
    pub(crate) came_back_in_part: u64,
    pub(crate) jumps: u64,
    /// What slow stores were asked.
    pub(crate) slow_stores: u64,
    /// Prefixes for which stores had no room.
    pub(crate) full_stores: u64,
    /// What was heard of a line that is over because a sabotage lets it in.
    pub(crate) let_in: u64,
}
