//! Where a URL that we learned from a document may lead: public addresses only, https only.
//!
//! What an operator configured may be private; what a document names may not, so that no document
//! can make us knock on doors inside (SPEC X-01). Names are judged by the addresses that they
//! resolve to, at connect: see [`EgressRules::documents`], which has these rules in its resolver.

mod allow;
mod documents;
mod public;
mod trust;

pub use self::allow::EgressRules;
pub use self::documents::{DocumentError, documents, documents_trusting, read_body};
pub use self::public::{EgressRefusal, check_address, check_url};
pub use self::trust::system_trust;
