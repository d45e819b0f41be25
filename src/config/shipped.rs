//! Tests of the shipped files in `config/` and `deploy/`.

use std::path::{Path, PathBuf};

use super::{Config, load, parse, placeholder, reference};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name)
}

fn read(path: &Path) -> Config {
    let text = std::fs::read_to_string(path).unwrap();
    // Sets every variable, to text long enough for a key, or to a URL.
    let env = |name: &str| match name {
        "REDIS_URL" => Some("rediss://drawbridge:word@redis.example.com:6379".to_owned()),
        _ => Some(format!("the-value-of-{name}-which-is-long-enough")),
    };
    match parse(&text, &path.to_string_lossy(), &env) {
        Ok(config) => config,
        Err(refusal) => panic!("{refusal}"),
    }
}

#[test]
fn the_reference_file_is_up_to_date() {
    let written = std::fs::read_to_string(folder("gateway.reference.toml")).unwrap();
    assert!(
        written == reference(),
        "config/gateway.reference.toml is stale: run `make reference`"
    );
}

#[test]
fn the_small_file_and_the_quickstart_load_without_a_doubt() {
    assert!(load(&folder("gateway.toml")).unwrap().warnings.is_empty());
    assert!(
        load(&folder("quickstart.toml"))
            .unwrap()
            .warnings
            .is_empty()
    );
}

#[test]
fn every_example_loads_without_a_doubt() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder("examples")).unwrap() {
        let config = read(&entry.unwrap().path());
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        seen += 1;
    }
    assert!(seen >= 5, "{seen} examples");
}

fn deployment(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("deploy")
        .join(name)
}

#[test]
fn the_configurations_of_deployments_load_without_a_doubt() {
    let one = ["compose/gateway.toml", "kubernetes/base/gateway.toml"];
    let several = ["kubernetes/replicas/gateway.toml"];
    for name in one.iter().chain(&several) {
        let config = read(&deployment(name));
        assert!(config.warnings.is_empty(), "{name}: {:?}", config.warnings);
        assert_eq!(config.cluster.is_some(), several.contains(name), "{name}");
    }
}

#[test]
fn the_configurations_of_replicas_load_with_assumed_variables() {
    for name in ["compose/replicas.toml", "kubernetes/replicas/gateway.toml"] {
        let text = std::fs::read_to_string(deployment(name)).unwrap();
        let assumed = |variable: &str| Some(placeholder(variable));
        let parsed = parse(&text, name, &assumed);
        assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
    }
}

// The two halves of docker-compose.yml: tokens of the realm satisfy the gateway's configuration.
#[test]
fn the_demonstration_realm_issues_tokens_for_the_gateway_of_the_compose_file() {
    let config = read(&deployment("compose/gateway.toml"));
    let realm = std::fs::read_to_string(deployment("keycloak/realm.json")).unwrap();
    let realm: serde_json::Value = serde_json::from_str(&realm).unwrap();
    let issuer = &config.auth.issuers[0].issuer;
    assert!(issuer.ends_with(&format!("/realms/{}", realm["realm"].as_str().unwrap())));
    let resource = format!(
        "{}/mcp",
        config.server.public_url.as_str().trim_end_matches('/')
    );
    let tool_scopes = config.auth.tool_scopes.iter().flat_map(|rule| &rule.scopes);
    for scope in config.auth.required_scopes.iter().chain(tool_scopes) {
        let scopes = realm["clientScopes"].as_array().unwrap();
        let found = scopes.iter().find(|known| known["name"] == scope.as_str());
        let mappers = found.unwrap_or_else(|| panic!("no scope {scope}"))["protocolMappers"]
            .as_array()
            .unwrap();
        assert!(
            mappers
                .iter()
                .any(|m| m["config"]["included.custom.audience"] == resource.as_str()),
            "{scope} brings no audience {resource}"
        );
    }
}

// Clients that were made with consent required have only the roles of their scopes. Without this role Keycloak refuses them
// `offline_access` (`not_allowed`), which most MCP clients request.
#[test]
fn the_demonstration_realm_lets_every_client_stay_connected() {
    let realm = std::fs::read_to_string(deployment("keycloak/realm.json")).unwrap();
    let realm: serde_json::Value = serde_json::from_str(&realm).unwrap();
    let mappings = realm["scopeMappings"].as_array().unwrap();
    let is_offline = |one: &&serde_json::Value| one["clientScope"] == "offline_access";
    let mapping = mappings.iter().find(is_offline).expect("a scope mapping");
    assert_eq!(mapping["roles"], serde_json::json!(["offline_access"]));
}
