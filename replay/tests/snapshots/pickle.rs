//! Pickles as Python and PyTorch write them, of protocol 2.

use serde_json::Value;

/// The pickle of a value. A list that begins with `"tuple"` is a tuple of the rest.
pub(crate) fn pickle(value: &Value) -> Vec<u8> {
    let mut bytes = b"\x80\x02".to_vec();
    add(&mut bytes, value);
    bytes.push(b'.');
    bytes
}

fn add(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(b'N'),
        Value::Bool(false) => bytes.push(0x89),
        Value::Bool(true) => bytes.push(0x88),
        Value::Number(number) => match number.as_u64() {
            Some(number) => {
                // One byte more than the number has, so that it has no sign.
                bytes.extend([0x8a, 9]);
                bytes.extend(number.to_le_bytes());
                bytes.push(0);
            }
            None => panic!("{number} is no address, size or time"),
        },
        Value::String(text) => {
            bytes.push(b'X');
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        Value::Array(items) if items.first() == Some(&Value::from("tuple")) => {
            bytes.push(b'(');
            items[1..].iter().for_each(|item| add(bytes, item));
            bytes.push(b't');
        }
        Value::Array(items) => {
            bytes.extend(b"](");
            items.iter().for_each(|item| add(bytes, item));
            bytes.push(b'e');
        }
        Value::Object(entries) => {
            bytes.extend(b"}(");
            for (key, value) in entries {
                add(bytes, &Value::from(key.as_str()));
                add(bytes, value);
            }
            bytes.push(b'u');
        }
    }
}
