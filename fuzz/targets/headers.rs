//! Header values: text comes back as it went, and what a schema asks for agrees with itself.
#![no_main]

use drawbridge::protocol::header_value;
use drawbridge::protocol::param_headers::ParamHeaders;
use http::HeaderValue;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (&str, &[u8], &str)| {
    let (text, raw, arguments) = data;
    let encoded = header_value::encode(text);
    assert_eq!(header_value::decode(&encoded).as_deref(), Some(text));
    if let Ok(value) = HeaderValue::from_bytes(raw)
        && let Some(decoded) = header_value::decode(&value)
    {
        let again = header_value::encode(&decoded);
        assert_eq!(header_value::decode(&again), Some(decoded));
    }
    // Whatever the schema and the arguments are: what is written passes the check.
    if let Ok(wanted) = ParamHeaders::read(text)
        && serde_json::from_str::<serde_json::Value>(arguments).is_ok_and(|value| value.is_object())
        && let Ok(written) = wanted.write(Some(arguments))
    {
        assert_eq!(wanted.check(Some(arguments), &written), Ok(()));
    }
});
