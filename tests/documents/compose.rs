//! `docker-compose.yml` fits its configurations, and the profile `replicas` fits nginx.

use serde_json::Value;

use crate::image::{said, stage, words};
use crate::{read, root, yaml};

/// Services by name; `None` without a reader of YAML.
fn services() -> Option<Value> {
    let file = root().join("docker-compose.yml");
    let mut all = yaml::documents("docker-compose.yml", &read(&file))?;
    all.first_mut()?.get_mut("services").map(Value::take)
}

fn entries(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().into_iter().flatten();
    list.filter_map(Value::as_str)
}

/// What a service has in its environment, variables of the caller's at their defaults.
fn variable(service: &Value, name: &str) -> Option<String> {
    let value = service.get("environment")?.get(name)?.as_str()?;
    let default = value
        .strip_prefix("${")
        .and_then(|rest| rest.split_once(":-"));
    let value = default.map_or(value, |(_, default)| default.trim_end_matches('}'));
    Some(value.to_owned())
}

#[test]
fn every_mounted_file_exists() {
    let Some(services) = services() else { return };
    let services = services.as_object().expect("services");
    let mounts = services
        .values()
        .flat_map(|service| entries(&service["volumes"]));
    let paths = mounts.filter_map(|mount| mount.strip_prefix("./")?.split(':').next());
    let paths: Vec<&str> = paths.collect();
    assert!(paths.len() > 5, "{paths:?}");
    for path in paths {
        assert!(root().join(path).exists(), "{path}");
    }
}

// `drawbridge health` ends within 5 s and says why it fails; an earlier kill loses the reason.
#[test]
fn health_checks_of_gateways_wait_for_the_reason() {
    let Some(services) = services() else { return };
    let services = services.as_object().expect("services");
    let checks = services.values().map(|service| &service["healthcheck"]);
    let is_ours = |check: &&Value| entries(&check["test"]).any(|word| word == "health");
    let ours: Vec<&Value> = checks.filter(is_ours).collect();
    assert_eq!(ours.len(), 3, "the gateway and two replicas");
    for check in ours {
        let timeout = check["timeout"].as_str().expect("a timeout");
        let seconds: u32 = timeout.trim_end_matches('s').parse().expect("seconds");
        assert!(seconds > 5, "{check}");
    }
}

#[test]
fn replicas_have_the_ports_that_nginx_and_the_host_know() {
    let Some(services) = services() else { return };
    let nginx = read(&root().join("deploy/compose/nginx.conf"));
    let published: Vec<&str> = entries(&services["keycloak"]["ports"]).collect();
    let is_published = |port: u16| {
        let end = format!(":{port}");
        published.iter().any(|entry| entry.ends_with(&end))
    };
    let file = read(&root().join("deploy/compose/replicas.toml"));
    let mut taken = Vec::new();
    for name in ["replica-1", "replica-2"] {
        let service = &services[name];
        assert_eq!(
            service["network_mode"], "service:keycloak",
            "nginx and the issuer are on loopback"
        );
        let env = |key: &str| variable(service, key);
        let config = drawbridge::config::parse(&file, name, &env).expect("a valid configuration");
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        let server = format!("server {};", config.server.listen);
        assert!(nginx.contains(&server), "nginx has no `{server}`");
        assert!(
            is_published(config.admin.listen.port()),
            "{name}: {published:?}"
        );
        let public = config.server.public_url.port().expect("a port");
        assert!(
            is_published(public) && nginx.contains(&format!("listen {public};")),
            "{public}"
        );
        let cluster = config.cluster.expect("[cluster]");
        let redis = &cluster.redis.nodes[0].0;
        assert!(services[redis].is_object(), "{redis} is no service");
        let policy: Vec<&str> = entries(&services[redis]["command"]).collect();
        assert!(
            policy.ends_with(&["--maxmemory-policy", "noeviction"]),
            "{policy:?}"
        );
        for address in [config.server.listen, config.admin.listen, cluster.listen] {
            taken.push(address.port());
        }
        let database = variable(service, "DATABASE_URL").expect("a database");
        assert!(database.ends_with("@postgres/drawbridge"), "{database}");
    }
    assert_eq!(nginx.matches("\n    server ").count(), 2);
    let count = taken.len();
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), count, "replicas share one network: {taken:?}");
}

#[test]
fn replicas_differ_in_their_ports_alone() {
    let Some(services) = services() else { return };
    let without_ports = |name: &str| {
        let mut service = services[name].clone();
        let environment = service["environment"].as_object_mut().expect("variables");
        environment.retain(|key, _| !key.ends_with("_PORT"));
        service
    };
    assert_eq!(without_ports("replica-1"), without_ports("replica-2"));
    for name in [
        "replica-1",
        "replica-2",
        "nginx",
        "redis",
        "postgres",
        "migrate",
    ] {
        let profiles: Vec<&str> = entries(&services[name]["profiles"]).collect();
        assert_eq!(profiles, ["replicas"], "{name}");
    }
}

/// While a new volume is prepared, a server that ends again answers on the socket, and not by TCP.
#[test]
fn postgres_is_asked_by_tcp_whether_it_is_ready() {
    let Some(services) = services() else { return };
    let test: Vec<&str> = entries(&services["postgres"]["healthcheck"]["test"]).collect();
    let host = test.iter().position(|word| *word == "--host");
    let host = host.and_then(|at| test.get(at + 1));
    assert_eq!(host, Some(&"127.0.0.1"), "{test:?}");
}

/// The file system of the image is read-only here: what the gateway writes goes to a volume or to memory.
#[test]
fn gateways_find_their_configuration_and_may_write_their_state() {
    let Some(services) = services() else { return };
    let image = stage("full");
    let (user, state) = (said(&image, "USER"), said(&image, "WORKDIR"));
    let (uid, _) = user.split_once(':').expect("user and group");
    let start = words(&said(&image, "CMD"));
    let file = start.last().expect("a configuration");
    let services = services.as_object().expect("services");
    let gateways = services
        .iter()
        .filter(|(_, service)| service["image"] == "drawbridge");
    let gateways: Vec<_> = gateways.collect();
    assert_eq!(gateways.len(), 4);
    for (name, service) in gateways {
        let mounts: Vec<&str> = entries(&service["volumes"]).collect();
        let mount = format!(":{file}:ro");
        assert!(
            mounts.iter().any(|one| one.ends_with(&mount)),
            "{name}: {mounts:?}"
        );
        let memory: Vec<&str> = entries(&service["tmpfs"]).collect();
        assert!(memory.contains(&"/tmp"), "{name}: {memory:?}");
        // An upstream's programs lie there.
        let is_memory = memory
            .iter()
            .any(|one| one.starts_with(&format!("{state}:exec,uid={uid},")));
        let is_volume = mounts.iter().any(|one| one.ends_with(&format!(":{state}")));
        assert!(is_memory != is_volume, "{name}: {memory:?}, {mounts:?}");
        if name != "migrate" {
            let test: Vec<&str> = entries(&service["healthcheck"]["test"]).collect();
            assert_eq!(
                test,
                ["CMD", "drawbridge", "health", "--config", file],
                "{name}"
            );
        }
    }
}
