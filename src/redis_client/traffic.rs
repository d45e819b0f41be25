//! Bytes to and from Redis, without the framing of its protocol.

use redis::{Arg, Cmd, Value};

/// Bytes of the name and the arguments of a command.
pub(super) fn of_command(command: &Cmd) -> usize {
    let arguments = command.args_iter().map(|argument| match argument {
        Arg::Simple(bytes) => bytes.len(),
        _ => 0,
    });
    arguments.sum()
}

/// Bytes of a reply: its texts, and eight for each number.
pub(super) fn of_reply(reply: &Value) -> usize {
    match reply {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) => text.len(),
        Value::Int(_) | Value::Double(_) => 8,
        Value::Array(values) | Value::Set(values) => values.iter().map(of_reply).sum(),
        Value::Map(pairs) => {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| of_reply(key) + of_reply(value))
                .sum()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use redis::cmd;

    use super::*;

    #[test]
    fn names_arguments_and_texts_of_replies_count() {
        let mut command = cmd("SET");
        command.arg("key").arg(vec![0; 100]);
        assert_eq!(of_command(&command), 3 + 3 + 100);
        let text = Value::BulkString(vec![0; 50]);
        let reply = Value::Array(vec![text, Value::Int(7), Value::Okay]);
        assert_eq!(of_reply(&reply), 58);
    }
}
