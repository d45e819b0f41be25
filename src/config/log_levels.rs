//! `telemetry.log_level`: the minimum level of log lines, for the whole gateway or for parts of it.

use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;

use super::nearest::nearest;

/// Most parts (`target=level`) in one value.
const MOST_PARTS: usize = 32;
/// The longest name of a part, in bytes.
const LONGEST_PART: usize = 128;

/// The levels, from the fewest lines to the most.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Target of the gateway's own lines; a part's target is `drawbridge::<part>`.
const OURS: &str = "drawbridge";

/// The source that lists the gateway's parts, each as a line `pub mod <part>;`.
const PARTS: &str = include_str!("../lib.rs");

/// Minimum levels of log lines. Lines of requests (`access`, `audit`) have no level to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevels {
    /// Minimum level of the gateway's own lines.
    ours: LevelFilter,
    /// Minimum levels of parts of the gateway and of libraries, by target; the longest matching one applies.
    parts: Vec<(String, LevelFilter)>,
}

impl Default for LogLevels {
    fn default() -> Self {
        Self {
            ours: LevelFilter::INFO,
            parts: Vec::new(),
        }
    }
}

impl LogLevels {
    /// Targets with their levels: libraries (the empty name), the gateway, then explicitly named parts.
    pub fn targets(&self) -> impl Iterator<Item = (&str, LevelFilter)> {
        // Libraries log much at INFO: below WARN they must be named explicitly.
        let libraries = self.ours.min(LevelFilter::WARN);
        let own = [("", libraries), (OURS, self.ours)];
        let named = self.parts.iter();
        own.into_iter()
            .chain(named.map(|(name, level)| (&**name, *level)))
    }
}

impl FromStr for LogLevels {
    type Err = String;

    /// Reads `"info"` or `"info,drawbridge::upstream=debug"`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut levels = Self::default();
        let mut is_said = false;
        for entry in text.split(',').map(str::trim) {
            if let Some((name, word)) = entry.split_once('=') {
                let (name, level) = (part(name.trim())?, level(word.trim())?);
                if levels.parts.iter().any(|(known, _)| *known == name) {
                    return Err(format!("`{name}` stands there twice"));
                }
                if levels.parts.len() == MOST_PARTS {
                    return Err(format!("more than {MOST_PARTS} parts are named"));
                }
                levels.parts.push((name, level));
            } else {
                levels.ours = level(entry)?;
                if std::mem::replace(&mut is_said, true) {
                    return Err("there are two levels without the name of a part".to_owned());
                }
            }
        }
        Ok(levels)
    }
}

impl fmt::Display for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ours)?;
        for (name, level) in &self.parts {
            write!(f, ",{name}={level}")?;
        }
        Ok(())
    }
}

fn level(text: &str) -> Result<LevelFilter, String> {
    let known = LEVELS
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(text));
    known.map(|(_, level)| *level).ok_or_else(|| {
        let words = LEVELS.map(|(word, _)| word);
        let near = match nearest(&text.to_ascii_lowercase(), &words) {
            Some(near) if !text.is_empty() => format!("; did you mean `{near}`?"),
            _ => String::new(),
        };
        format!(
            "expected levels such as \"info\" or \"info,drawbridge::upstream=debug\", each one of {}{near}",
            words.join(", ")
        )
    })
}

fn part(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
    if name.is_empty() || name.len() > LONGEST_PART || !name.chars().all(fits) {
        return Err(
            "expected the name of a part before `=`, such as drawbridge::upstream".to_owned(),
        );
    }
    if name == "access" || name == "audit" {
        return Err(format!("lines of `{name}` are always written"));
    }
    let inner = name
        .strip_prefix(OURS)
        .and_then(|rest| rest.strip_prefix("::"));
    let module = inner.map(|inner| inner.split("::").next().unwrap_or_default());
    let parts: Vec<&str> = PARTS
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    // Without the crate name the target would name a library.
    let hint = |module: &str| format!("; did you mean `{OURS}::{module}`?");
    match module {
        Some(module) if !parts.contains(&module) => {
            let near = nearest(module, &parts).map(hint).unwrap_or_default();
            Err(format!("the gateway has no part `{module}`{near}"))
        }
        None if parts.contains(&name) => {
            Err(format!("`{name}` is no name of a part{}", hint(name)))
        }
        _ => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn targets(text: &str) -> Vec<(String, LevelFilter)> {
        let levels: LogLevels = text.parse().unwrap();
        let targets = levels.targets();
        targets
            .map(|(name, level)| (name.to_owned(), level))
            .collect()
    }

    #[test]
    fn libraries_stay_quiet_unless_they_are_named() {
        use LevelFilter as L;
        let named = |name: &str, level| (name.to_owned(), level);
        let own = |libraries, ours| vec![named("", libraries), named("drawbridge", ours)];
        assert_eq!(targets("info"), own(L::WARN, L::INFO));
        assert_eq!(targets("trace"), own(L::WARN, L::TRACE));
        assert_eq!(targets("error"), own(L::ERROR, L::ERROR));
        let mut more = own(L::WARN, L::INFO);
        more.push(named("hyper", L::DEBUG));
        assert_eq!(targets("hyper=debug"), more);
    }

    #[test]
    fn levels_are_shown_as_they_are_written() {
        let text = "warn,drawbridge::upstream=debug,h2=off";
        assert_eq!(text.parse::<LogLevels>().unwrap().to_string(), text);
        let spaced = " WARN , drawbridge::upstream = Debug,h2=off";
        assert_eq!(spaced.parse::<LogLevels>().unwrap().to_string(), text);
        assert_eq!("info".parse(), Ok(LogLevels::default()));
    }

    #[rstest]
    #[case::no_level("loud", "each one of off, error, warn, info, debug, trace")]
    #[case::near("debg", "did you mean `debug`?")]
    #[case::empty("", "expected levels such as")]
    #[case::trailing("info,", "expected levels such as")]
    #[case::no_level_of_a_part("drawbridge::upstream=", "each one of off")]
    #[case::two("info,debug", "two levels")]
    #[case::twice("h2=info,h2=debug", "`h2` stands there twice")]
    #[case::no_part("=debug", "expected the name of a part")]
    #[case::pattern("drawbridge::*=debug", "expected the name of a part")]
    #[case::unknown_part("drawbridge::upstraem=debug", "did you mean `drawbridge::upstream`?")]
    #[case::bare_part("upstream=debug", "did you mean `drawbridge::upstream`?")]
    #[case::access("access=off", "always written")]
    fn what_is_no_level_is_refused(#[case] text: &str, #[case] expected: &str) {
        let what = text.parse::<LogLevels>().unwrap_err();
        assert!(what.contains(expected), "{what}");
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let parts: Vec<String> = (0..=MOST_PARTS).map(|n| format!("a{n}=debug")).collect();
        assert!(parts[1..].join(",").parse::<LogLevels>().is_ok());
        assert!(parts.join(",").parse::<LogLevels>().is_err());
        let long = format!("{}=debug", "a".repeat(LONGEST_PART + 1));
        assert!(long.parse::<LogLevels>().is_err());
    }
}
