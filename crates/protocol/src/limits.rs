//! Upper bounds on what a message may hold. A peer that exceeds one is refused, never served partly.

/// Tokens in one sequence. The longest contexts in use are 10 M; 16 M leaves room and keeps positions far from `u32::MAX`.
pub const MAX_CONTEXT: u32 = 1 << 24;
/// Rows in one chunk or window: above any sensible micro-batch (llama.cpp defaults to 512), small enough to bound a frame.
pub const MAX_ROWS: u32 = 4096;
/// Floats in one hidden row. The widest published models have 16,384; twice that leaves room.
pub const MAX_ROW_WIDTH: u32 = 32_768;
/// Bytes in one frame, head and rows together: `MAX_ROWS` rows of 16,384 floats.
pub const MAX_FRAME_BYTES: usize = 256 << 20;
/// Stages in one line. A token crosses every link, so long lines stop paying well before this.
pub const MAX_STAGES: u16 = 256;
/// Machines that one front keeps control links to: a spare for each stage.
pub const MAX_PEERS: u16 = 2 * MAX_STAGES;
/// Layers in one model. The deepest published models have 126.
pub const MAX_LAYERS: u32 = 4096;
/// Sequences that one stage holds at once.
pub const MAX_SLOTS: u16 = 1024;
/// Bytes of a text in a message (a fault's reason, an address).
pub const MAX_TEXT: usize = 4096;
/// Tokens in a draft of the tail's own: models' blocks for that are trained for a few.
pub const MAX_DRAFT: u8 = 8;
/// Alternatives per token in log-probabilities: OpenAI allows 20, vLLM more on request.
pub const MAX_TOP_LOGPROBS: u8 = 64;
/// Values of hidden rows in one part of what a prompt gives: some rows of any model, 2 MiB.
pub const MAX_PART_VALUES: usize = 512 << 10;
/// Entries of `logit_bias`: OpenAI's clients send at most 300; grammars of a few thousand ids exist.
pub const MAX_LOGIT_BIAS: usize = 8192;
/// Sequence breakers of DRY, and bytes in each.
pub const MAX_DRY_BREAKERS: usize = 64;
/// Bytes of a grammar: OpenAI bounds the names and values of a schema to 120,000 characters.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// Epochs of one sequence: each commits at least one token, so there are no more of them than positions.
pub const MAX_EPOCH: u32 = MAX_CONTEXT;
/// Windows of one sequence: 64 per position of the longest context, far from `u32::MAX`.
pub const MAX_WINDOW: u32 = 64 * MAX_CONTEXT;
/// Bytes in one control message. The largest is a verdict with [`MAX_TOP_LOGPROBS`] alternatives for each of
/// [`MAX_ROWS`] tokens: 2.2 MB.
pub const MAX_CONTROL_BYTES: usize = 4 << 20;
/// Bytes of what a cluster's root says of its members: fits into a greeting, and has room for some hundred memberships.
pub const MAX_NOTICE_BYTES: usize = 256 << 10;
/// Bytes in a message of the handshake. The largest is a build of [`MAX_TEXT`] bytes with a
/// notice, or a refusal with three such texts.
pub const MAX_HELLO_BYTES: usize = 272 << 10;
