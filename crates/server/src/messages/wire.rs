//! Anthropic's answers, whole and as events.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::MessagesError;
use crate::error::ApiError;
use crate::generation::{Delta, Ending};
use crate::stream::{Call, Frame, Message, Wire};
use crate::turn::Part;

/// What all parts of one answer share.
pub(super) struct Envelope {
    pub id: String,
    pub model: String,
    pub prompt_tokens: u32,
}

/// A message.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Message")]
pub(crate) struct Whole {
    id: String,
    /// `message`.
    r#type: &'static str,
    /// `assistant`.
    role: &'static str,
    model: String,
    content: Vec<Content>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null while it is being made.
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    usage: Usage,
}

/// A block of a message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content {
    Thinking {
        thinking: String,
        /// Always empty.
        signature: &'static str,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
}

/// Tokens read and said; those that were resident do not count as input here.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
struct Usage {
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

impl Envelope {
    /// A whole answer.
    pub(super) fn whole(&self, message: Message, ending: &Ending) -> Whole {
        let mut content = Vec::new();
        if !message.reasoning.is_empty() {
            content.push(Content::Thinking { thinking: message.reasoning, signature: "" });
        }
        if !message.text.is_empty() {
            content.push(Content::Text { text: message.text });
        }
        for Call { id, name, arguments } in message.calls {
            // Arguments that were cut off are no JSON; a client can only be given an object.
            let input = serde_json::from_str(&arguments).unwrap_or_default();
            content.push(Content::ToolUse { id, name, input });
        }
        Whole {
            stop_reason: Some(stop_reason(ending)),
            stop_sequence: ending.stop.clone(),
            usage: self.usage(ending.cached, ending.completion),
            ..self.message(content)
        }
    }

    fn message(&self, content: Vec<Content>) -> Whole {
        Whole {
            id: self.id.clone(),
            r#type: "message",
            role: "assistant",
            model: self.model.clone(),
            content,
            stop_reason: None,
            stop_sequence: None,
            usage: self.usage(0, 0),
        }
    }

    const fn usage(&self, cached: u32, output: u32) -> Usage {
        Usage {
            input_tokens: self.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: output,
        }
    }
}

fn stop_reason(ending: &Ending) -> &'static str {
    match (ending.finish, &ending.stop) {
        ("tool_calls", _) => "tool_use",
        ("length", _) => "max_tokens",
        (_, Some(_)) => "stop_sequence",
        _ => "end_turn",
    }
}

/// A block being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    ToolUse,
}

/// An answer as a stream.
pub(super) struct MessageStream {
    envelope: Envelope,
    open: Option<Block>,
    /// Blocks begun.
    n_blocks: usize,
}

impl MessageStream {
    pub(super) const fn new(envelope: Envelope) -> Self {
        Self { envelope, open: None, n_blocks: 0 }
    }

    fn begin(&mut self, block: Block, content: &Content, frames: &mut Vec<Frame>) {
        self.end_block(frames);
        let event =
            json!({ "type": "content_block_start", "index": self.n_blocks, "content_block": content });
        frames.push(Frame::named("content_block_start", &event));
        if self.n_blocks == 0 {
            frames.push(Frame::named("ping", &json!({ "type": "ping" })));
        }
        self.open = Some(block);
        self.n_blocks += 1;
    }

    /// Begins a block of text or thinking unless one is open.
    fn ensure(&mut self, block: Block, content: Content, frames: &mut Vec<Frame>) {
        if self.open != Some(block) {
            self.begin(block, &content, frames);
        }
    }

    fn block_delta(&self, delta: &Value) -> Frame {
        let index = self.n_blocks.saturating_sub(1);
        let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        Frame::named("content_block_delta", &event)
    }

    fn end_block(&mut self, frames: &mut Vec<Frame>) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            frames.push(self.block_delta(&json!({ "type": "signature_delta", "signature": "" })));
        }
        let event = json!({ "type": "content_block_stop", "index": self.n_blocks.saturating_sub(1) });
        frames.push(Frame::named("content_block_stop", &event));
    }
}

impl Wire for MessageStream {
    fn open(&mut self, _n: usize) -> Vec<Frame> {
        let message = self.envelope.message(Vec::new());
        vec![Frame::named("message_start", &json!({ "type": "message_start", "message": message }))]
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Frame> {
        let mut frames = Vec::new();
        for part in delta.parts {
            let delta = match part {
                Part::Text(text) => {
                    self.ensure(Block::Text, Content::Text { text: String::new() }, &mut frames);
                    json!({ "type": "text_delta", "text": text })
                }
                Part::Reasoning(text) => {
                    let content = Content::Thinking { thinking: String::new(), signature: "" };
                    self.ensure(Block::Thinking, content, &mut frames);
                    json!({ "type": "thinking_delta", "thinking": text })
                }
                Part::Call { id, name } => {
                    let content = Content::ToolUse { id, name, input: Map::new() };
                    self.begin(Block::ToolUse, &content, &mut frames);
                    continue;
                }
                Part::Arguments(json) => json!({ "type": "input_json_delta", "partial_json": json }),
            };
            frames.push(self.block_delta(&delta));
        }
        frames
    }

    fn end(&mut self, _index: usize, ending: &Ending) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.end_block(&mut frames);
        let event = json!({
            "type": "message_delta",
            "delta": { "stop_reason": stop_reason(ending), "stop_sequence": ending.stop },
            "usage": self.envelope.usage(ending.cached, ending.completion),
        });
        frames.push(Frame::named("message_delta", &event));
        frames
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::named("error", &MessagesError::body(error))]
    }

    fn close(&mut self) -> Vec<Frame> {
        vec![Frame::named("message_stop", &json!({ "type": "message_stop" }))]
    }
}
