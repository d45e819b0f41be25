//! `EgressRules`: the rules for learned URLs with what `egress.allow` opens.
//!
//! An allowed block opens its addresses, an allowed host name whatever it resolves to. Plain http is for loopback
//! addresses among these.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::ClientBuilder;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use super::documents::documents;
use super::public::{EgressRefusal, check_address, check_url};
use crate::config::{EgressAllow, EgressConfig};

/// What learned URLs may lead to. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct EgressRules(Arc<Vec<EgressAllow>>);

impl EgressRules {
    /// The rules of the configuration.
    #[must_use]
    pub fn new(config: &EgressConfig) -> Self {
        Self(Arc::new(config.allow.clone()))
    }

    /// Checks a learned URL without resolving its name. What it resolves to is judged at the connection, by the clients
    /// below.
    ///
    /// # Errors
    /// The URL must not be contacted.
    pub fn check_url(&self, url: &Url) -> Result<(), EgressRefusal> {
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressRefusal::Credentials);
        }
        let (is_allowed, is_loopback) = match url.host() {
            Some(Host::Domain(name)) => (self.allows_name(name), true),
            Some(Host::Ipv4(address)) => (self.allows(address.into()), address.is_loopback()),
            Some(Host::Ipv6(address)) => {
                let address = IpAddr::from(address).to_canonical();
                (self.allows(address), address.is_loopback())
            }
            None => return Err(EgressRefusal::Host),
        };
        match url.scheme() {
            "https" if is_allowed => Ok(()),
            "http" if is_allowed && is_loopback => Ok(()),
            _ => check_url(url),
        }
    }

    /// A client for learned https URLs. It connects to public and allowed addresses alone.
    pub fn documents(&self) -> ClientBuilder {
        let resolver = AllowedOnly {
            rules: self.clone(),
            plain: false,
        };
        documents().https_only(true).dns_resolver(resolver)
    }

    /// A client for learned plain URLs: names lead it to loopback addresses alone.
    pub fn plain_documents(&self) -> ClientBuilder {
        let resolver = AllowedOnly {
            rules: self.clone(),
            plain: true,
        };
        documents().dns_resolver(resolver)
    }

    fn allows_name(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.0
            .iter()
            .any(|one| matches!(one, EgressAllow::Host(host) if host.eq_ignore_ascii_case(name)))
    }

    fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|one| match one {
            EgressAllow::Block(block, length) => is_in(address, *block, *length),
            EgressAllow::Host(_) => false,
        })
    }

    fn kept(
        &self,
        name: &str,
        found: impl Iterator<Item = SocketAddr>,
        plain: bool,
    ) -> Result<Vec<SocketAddr>, EgressRefusal> {
        let is_named = self.allows_name(name);
        let fits = |address: &SocketAddr| {
            let address = address.ip().to_canonical();
            if plain {
                return address.is_loopback() && (is_named || self.allows(address));
            }
            is_named || self.allows(address) || check_address(address).is_ok()
        };
        let kept: Vec<_> = found.filter(fits).collect();
        if kept.is_empty() {
            return Err(EgressRefusal::Address);
        }
        Ok(kept)
    }
}

/// Whether `address` has the first `length` bits of `block`.
fn is_in(address: IpAddr, block: IpAddr, length: u8) -> bool {
    let length = u32::from(length);
    match (address, block) {
        (IpAddr::V4(address), IpAddr::V4(block)) => {
            let differs = address.to_bits() ^ block.to_bits();
            length == 0 || differs.checked_shr(32 - length) == Some(0)
        }
        (IpAddr::V6(address), IpAddr::V6(block)) => {
            let differs = address.to_bits() ^ block.to_bits();
            length == 0 || differs.checked_shr(128 - length) == Some(0)
        }
        _ => false,
    }
}

/// Resolves names to the addresses that the rules let a client connect to, so that the address that is checked is the
/// one that is connected to.
struct AllowedOnly {
    rules: EgressRules,
    plain: bool,
}

impl Resolve for AllowedOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let (rules, plain) = (self.rules.clone(), self.plain);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let kept = rules.kept(name.as_str(), found, plain)?;
            Ok(Box::new(kept.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn rules() -> EgressRules {
        let block = |text: &str, length| EgressAllow::Block(text.parse().unwrap(), length);
        EgressRules::new(&EgressConfig {
            allow: vec![
                block("10.1.0.0", 16),
                block("127.0.0.1", 32),
                block("fd00::", 8),
                EgressAllow::Host("keycloak.internal".to_owned()),
            ],
        })
    }

    #[rstest]
    #[case::public("https://auth.example.com/token", Ok(()))]
    #[case::in_a_block("https://10.1.2.3/", Ok(()))]
    #[case::mapped("https://[::ffff:10.1.2.3]/", Ok(()))]
    #[case::v6("https://[fd00::1]/", Ok(()))]
    #[case::named("https://KEYCLOAK.internal./", Ok(()))]
    #[case::plain_loopback("http://127.0.0.1:8080/", Ok(()))]
    #[case::plain_name("http://keycloak.internal:8080/", Ok(()))]
    #[case::beside_the_block("https://10.2.0.1/", Err(EgressRefusal::Address))]
    #[case::other_loopback("http://127.0.0.2/", Err(EgressRefusal::Scheme))]
    #[case::plain_private("http://10.1.2.3/", Err(EgressRefusal::Scheme))]
    #[case::plain_public("http://auth.example.com/", Err(EgressRefusal::Scheme))]
    #[case::below_the_name("https://x.keycloak.internal/", Err(EgressRefusal::Host))]
    #[case::cloud("https://169.254.169.254/", Err(EgressRefusal::Address))]
    #[case::script("javascript:alert(1)", Err(EgressRefusal::Host))]
    #[case::credentials("https://a:b@keycloak.internal/", Err(EgressRefusal::Credentials))]
    fn what_is_allowed_is_opened_and_nothing_beside_it(
        #[case] url: &str,
        #[case] verdict: Result<(), EgressRefusal>,
    ) {
        assert_eq!(rules().check_url(&Url::parse(url).unwrap()), verdict);
    }

    #[test]
    fn without_a_list_the_rules_are_those_of_everybody() {
        for url in [
            "http://127.0.0.1/",
            "https://10.1.2.3/",
            "https://keycloak.internal/",
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(EgressRules::default().check_url(&url), check_url(&url));
        }
    }

    #[rstest]
    #[case::public_name("auth.test", "93.184.216.34", false, true)]
    #[case::rebound("auth.test", "169.254.169.254", false, false)]
    #[case::in_a_block("auth.test", "10.1.2.3", false, true)]
    #[case::named("keycloak.internal", "192.168.0.1", false, true)]
    #[case::plain_named("keycloak.internal", "127.0.0.9", true, true)]
    #[case::plain_elsewhere("keycloak.internal", "192.168.0.1", true, false)]
    fn a_name_leads_only_to_addresses_that_the_rules_have(
        #[case] name: &str,
        #[case] address: &str,
        #[case] plain: bool,
        #[case] kept: bool,
    ) {
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        let found = rules().kept(name, [address].into_iter(), plain);
        assert_eq!(found.is_ok(), kept, "{found:?}");
    }

    // SPEC X-01: a name that also leads inside
    #[test]
    fn of_the_addresses_of_a_name_only_the_public_ones_are_tried() {
        let kept = |found: &[&str]| {
            let found = found.iter();
            let found = found.map(|address| SocketAddr::new(address.parse().unwrap(), 0));
            let kept = EgressRules::default().kept("auth.test", found, false);
            kept.ok()
        };
        let public = SocketAddr::new("93.184.216.34".parse().unwrap(), 0);
        let found = ["10.0.0.1", "93.184.216.34", "::1"];
        assert_eq!(kept(&found), Some(vec![public]));
        assert_eq!(kept(&["169.254.169.254", "::ffff:10.0.0.1"]), None);
        assert_eq!(kept(&[]), None);
    }

    // SPEC X-01
    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_not_resolved() {
        let (rules, plain) = (EgressRules::default(), false);
        let name = "localhost".parse().unwrap();
        let resolved = AllowedOnly { rules, plain }.resolve(name).await;
        assert!(resolved.is_err());
    }
}
