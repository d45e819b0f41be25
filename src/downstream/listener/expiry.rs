//! Expiry of a certificate: the only X.509 field read here. Spec: RFC 5280 §4.1.

use std::time::Duration;

use jiff::civil::DateTime;

/// Tags of DER.
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Digits of a time with its century.
const DIGITS: usize = "YYYYMMDDHHMMSS".len();

/// `notAfter` of a certificate in DER, since the Unix epoch; `None` where it cannot be read.
pub(super) fn not_after(der: &[u8]) -> Option<Duration> {
    let (SEQUENCE, certificate, _) = value(der)? else {
        return None;
    };
    let (SEQUENCE, mut rest, _) = value(certificate)? else {
        return None;
    };
    // Before it: version, serial number, algorithm, issuer.
    for expected in [VERSION, INTEGER, SEQUENCE, SEQUENCE] {
        let (tag, _, after) = value(rest)?;
        if tag == expected {
            rest = after;
        } else if expected != VERSION {
            return None;
        }
    }
    let (SEQUENCE, validity, _) = value(rest)? else {
        return None;
    };
    let (_, _, after) = value(validity)?;
    let (tag, text, _) = value(after)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// The first DER value: tag, content, and the bytes after the value.
fn value(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if bytes.is_empty() || bytes.len() > 4 {
            return None;
        }
        let add = |length: usize, byte: &u8| (length << 8) | usize::from(*byte);
        (bytes.iter().fold(0, add), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`, in UTC.
fn time(tag: u8, text: &str) -> Option<Duration> {
    let digits = text.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let century = match tag {
        // Spec: RFC 5280 §4.1.2.5.1
        UTC_TIME if digits < "50" => "20",
        UTC_TIME => "19",
        GENERALIZED_TIME => "",
        _ => return None,
    };
    let whole = Some([century, digits].concat()).filter(|whole| whole.len() == DIGITS)?;
    // Not a `Timestamp`: its last day is the one before the last of the year 9999, which stands for "never".
    let time = DateTime::strptime("%Y%m%d%H%M%S", whole).ok()?;
    let since = time.duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0));
    Some(Duration::try_from(since).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::epoch(UTC_TIME, "700101000000Z", 0)]
    #[case::leap_day(UTC_TIME, "240229235959Z", 1_709_251_199)]
    #[case::last_of_the_short_form(UTC_TIME, "491231235959Z", 2_524_607_999)]
    #[case::first_of_the_long_form(GENERALIZED_TIME, "20500101000000Z", 2_524_608_000)]
    #[case::never(GENERALIZED_TIME, "99991231235959Z", 253_402_300_799)]
    #[case::long_ago(UTC_TIME, "500101000000Z", 0)]
    fn times_are_seconds_since_the_epoch(
        #[case] tag: u8,
        #[case] text: &str,
        #[case] expected: u64,
    ) {
        assert_eq!(time(tag, text), Some(Duration::from_secs(expected)));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "Z",
            "2401010000Z",
            "241301000000Z",
            "2401010000000",
            "24010100000aZ",
            "240230000000Z",
            "240101250000Z",
        ] {
            assert_eq!(time(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(time(SEQUENCE, "700101000000Z"), None);
    }

    #[test]
    fn a_certificate_says_when_it_expires() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut request = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        request.not_after = rcgen::date_time_ymd(2031, 3, 1);
        let der = request.self_signed(&key).unwrap();
        let expected = Duration::from_hours(536_136);
        assert_eq!(not_after(der.der()), Some(expected));
        // Cut anywhere, and with any byte changed, it is read or not: nothing panics.
        for end in 0..der.der().len() {
            let _ = not_after(&der.der()[..end]);
            let mut changed = der.der().to_vec();
            changed[end] ^= 0xff;
            let _ = not_after(&changed);
        }
    }
}
