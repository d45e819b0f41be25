//! Everything that is counted. A new instrument is one line here and one name in `names`.
//!
//! Counters and gauges are plain atomics, usable before telemetry is set up and from any thread;
//! the exporters read them when they collect.

mod instrument;

pub use instrument::{Counter, Gauge, Labeled, Open};

use super::names::metric;

/// Declares a struct of instruments, its one static value, and the list that exporters walk.
macro_rules! table {
    ($(#[$about:meta])* $table:ident $value:ident of $kind:ident {
        $($field:ident = $name:expr, $unit:literal, $help:literal $(, $label:expr)?;)+
    }) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $table {
            $(#[doc = $help] pub $field: $kind,)+
        }

        #[doc = concat!("The one value of [`", stringify!($table), "`].")]
        pub static $value: $table = $table {
            $($field: $kind::new($name, $unit, $help $(, $label)?),)+
        };

        impl $table {
            /// Every instrument, in the order of declaration.
            #[must_use]
            pub fn all(&'static self) -> Vec<&'static $kind> {
                vec![$(&self.$field),+]
            }
        }
    };
}

table! {
    /// What only ever grows.
    Counters COUNTERS of Counter {
        connections_refused = metric::CONNECTIONS_REFUSED, "{connection}",
            "Connections refused because the configured number was open.";
    }
}

table! {
    /// What goes up and down.
    Gauges GAUGES of Gauge {
        connections_open = metric::CONNECTIONS_OPEN, "{connection}",
            "Client connections that are open.";
    }
}

table! {
    /// What only ever grows, told apart by one label; rare things only.
    LabeledCounters LABELED of Labeled {
        requests_refused = metric::REQUESTS_REFUSED, "{request}",
            "Requests refused for their host name or origin.", "reason";
    }
}
