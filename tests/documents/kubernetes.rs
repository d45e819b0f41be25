//! `deploy/kubernetes` fits the program: ports, probes, names, variables and configuration.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use drawbridge::budget::ProcessBound;
use drawbridge::config::Config;
use serde_json::Value;

use crate::snippets::snippets;
use crate::{read, root, yaml};

/// The label by which everything finds the pods.
const LABEL: &str = "/metadata/labels/app.kubernetes.io~1name";
/// What a stop takes beyond `server.drain`: the stop ladder of children, and the last export of telemetry.
const AFTER_DRAIN: Duration = Duration::from_secs(5 + 3);

fn folder(name: &str) -> PathBuf {
    root().join("deploy/kubernetes").join(name)
}

/// Files of one folder with this extension, without its kustomization.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| {
        path.extension().is_some_and(|one| one == extension)
            && path
                .file_name()
                .is_some_and(|name| name != "kustomization.yaml")
    };
    paths.filter(named).collect()
}

/// A way to install: the objects of its folders, patches included, and its configuration.
struct Overlay {
    objects: Vec<Value>,
    config: Config,
    /// Variables that the configuration names.
    variables: BTreeSet<String>,
}

/// The ways to install: one replica, several; `None` without a reader of YAML.
fn overlays() -> Option<&'static [Overlay; 2]> {
    static ALL: OnceLock<Option<[Overlay; 2]>> = OnceLock::new();
    let read = || Some([overlay(&["base"])?, overlay(&["base", "replicas"])?]);
    ALL.get_or_init(read).as_ref()
}

fn overlay(folders: &[&str]) -> Option<Overlay> {
    let mut objects = Vec::new();
    for file in folders.iter().flat_map(|name| files(&folder(name), "yaml")) {
        objects.extend(yaml::documents(&file.display().to_string(), &read(&file))?);
    }
    let file = folder(folders.last().expect("a folder")).join("gateway.toml");
    let variables = RefCell::new(BTreeSet::new());
    let env = |name: &str| {
        variables.borrow_mut().insert(name.to_owned());
        let is_url = name.ends_with("_URL");
        let value = if is_url {
            "redis://redis:6379"
        } else {
            "0123456789abcdefghijklmnopqrstuv"
        };
        Some(value.to_owned())
    };
    let config = drawbridge::config::parse(&read(&file), &file.display().to_string(), &env);
    let config = config.expect("a valid configuration");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    Some(Overlay {
        objects,
        config,
        variables: variables.into_inner(),
    })
}

impl Overlay {
    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects
            .iter()
            .filter(move |object| text(object, "kind") == kind)
    }

    /// The entries of a list of the gateway's container, those of patches included.
    fn in_container(&self, list: &str) -> Vec<&Value> {
        let deployments = self.of_kind("Deployment");
        let containers = deployments
            .filter_map(|object| object.pointer("/spec/template/spec/containers"))
            .flat_map(entries)
            .filter(|container| text(container, "name") == "drawbridge");
        let lists = containers.filter_map(|container| container.get(list));
        lists.flat_map(entries).collect()
    }

    /// Ports of the container by name.
    fn ports(&self) -> BTreeMap<&str, u64> {
        let ports = self.in_container("ports").into_iter();
        ports
            .map(|port| (text(port, "name"), number(port, "containerPort")))
            .collect()
    }
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The text at `key`.
fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    let value = object.get(key).and_then(Value::as_str);
    value.expect("a text")
}

/// The number at `key`.
fn number(object: &Value, key: &str) -> u64 {
    let value = object.get(key).and_then(Value::as_u64);
    value.expect("a number")
}

#[test]
fn every_file_is_named_by_its_kustomization() {
    for name in [".", "base", "with-state", "replicas"] {
        let text = read(&folder(name).join("kustomization.yaml"));
        for file in files(&folder(name), "yaml")
            .into_iter()
            .chain(files(&folder(name), "toml"))
        {
            let file = file
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            assert!(text.contains(&file), "{name}: {file} is named nowhere");
        }
    }
}

#[test]
fn ports_are_those_of_the_configuration() {
    let Some(overlays) = overlays() else { return };
    for overlay in overlays {
        let config = &overlay.config;
        let mut listening = BTreeMap::from([
            ("mcp", config.server.listen),
            ("admin", config.admin.listen),
        ]);
        listening.extend(
            config
                .cluster
                .as_ref()
                .map(|cluster| ("replicas", cluster.listen)),
        );
        for address in listening.values() {
            assert!(
                address.ip().is_unspecified(),
                "{address}: pods are reached by address"
            );
        }
        let listening: BTreeMap<&str, u64> = listening
            .into_iter()
            .map(|(name, at)| (name, u64::from(at.port())))
            .collect();
        let ports = overlay.ports();
        assert_eq!(ports, listening);
        for service in overlay.of_kind("Service") {
            for port in entries(&service["spec"]["ports"]) {
                assert!(ports.contains_key(text(port, "targetPort")), "{port}");
            }
        }
        let scraped = overlay.of_kind("Deployment").next().expect("a deployment");
        let scraped = &scraped["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"];
        assert_eq!(*scraped, ports["admin"].to_string());
    }
}

#[test]
fn probes_ask_what_the_admin_port_answers() {
    let Some([one, _]) = overlays() else { return };
    let deployment = one.of_kind("Deployment").next().expect("a deployment");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    for (probe, path) in [
        ("startupProbe", "/ready"),
        ("readinessProbe", "/ready"),
        ("livenessProbe", "/live"),
    ] {
        let get = &container[probe]["httpGet"];
        assert_eq!(
            (text(get, "port"), text(get, "path")),
            ("admin", path),
            "{probe}"
        );
    }
    // Where the image looks for its configuration.
    let mounts = one.in_container("volumeMounts");
    let mount = mounts
        .iter()
        .find(|mount| mount["name"] == "config")
        .expect("a mount");
    let file = format!("\"{}/gateway.toml\"", text(mount, "mountPath"));
    assert!(read(&root().join("Dockerfile")).contains(&file), "{file}");
}

#[test]
fn grace_period_is_longer_than_a_drain() {
    let Some(overlays) = overlays() else { return };
    for overlay in overlays {
        let deployment = overlay.of_kind("Deployment").next().expect("a deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        let grace = Duration::from_secs(number(pod, "terminationGracePeriodSeconds"));
        let before = number(
            &pod["containers"][0]["lifecycle"]["preStop"]["sleep"],
            "seconds",
        );
        let stop = Duration::from_secs(before) + overlay.config.server.drain + AFTER_DRAIN;
        assert!(grace > stop, "{grace:?} for {stop:?}");
    }
}

#[test]
fn memory_limit_is_above_what_the_process_takes_at_most() {
    let Some(overlays) = overlays() else { return };
    for overlay in overlays {
        let deployment = overlay.of_kind("Deployment").next().expect("a deployment");
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let limit = text(&container["resources"]["limits"], "memory");
        let gib: usize = limit
            .strip_suffix("Gi")
            .expect("GiB")
            .parse()
            .expect("a number");
        let bound = ProcessBound::new(&overlay.config);
        assert!(gib << 30 > bound.bytes(), "{limit}: {}", bound.summary());
    }
}

#[test]
fn every_selector_finds_the_pods() {
    let Some(overlays) = overlays() else { return };
    for overlay in overlays {
        let deployment = overlay.of_kind("Deployment").next().expect("a deployment");
        let pods = deployment["spec"]["template"]
            .pointer(LABEL)
            .expect("a label");
        for object in overlay
            .objects
            .iter()
            .filter(|object| object["kind"] != "Deployment")
        {
            assert_eq!(object.pointer(LABEL), Some(pods), "{object}");
            let spec = &object["spec"];
            let (kind, name) = (text(object, "kind"), &object["metadata"]["name"]);
            let selected = match kind {
                "Service" => &spec["selector"]["app.kubernetes.io/name"],
                "PodDisruptionBudget" => &spec["selector"]["matchLabels"]["app.kubernetes.io/name"],
                "NetworkPolicy" => &spec["podSelector"]["matchLabels"]["app.kubernetes.io/name"],
                "HorizontalPodAutoscaler" => &spec["scaleTargetRef"]["name"],
                _ => panic!("{kind} {name} is not known to this test"),
            };
            assert_eq!(selected, pods, "{kind} {name}");
        }
    }
}

/// The objects in blocks of YAML of all pages; `None` without a reader of YAML.
fn objects_of_pages() -> Option<Vec<Value>> {
    let mut objects = Vec::new();
    for snippet in snippets() {
        if snippet.language == "yaml" {
            objects.extend(yaml::documents(&snippet.place(), &snippet.text)?);
        }
    }
    Some(objects)
}

#[test]
fn objects_of_pages_fit_those_to_install() {
    let (Some([one, _]), Some(objects)) = (overlays(), objects_of_pages()) else {
        return;
    };
    let of_kind = |kind: &str| {
        let mut objects = objects.iter().filter(|object| object["kind"] == kind);
        &objects.next().expect("an object of this kind")["spec"]
    };
    let service = one.of_kind("Service").next().expect("a service");
    let (name, port) = (&service["metadata"]["name"], &service["spec"]["ports"][0]);
    let backend = &of_kind("HTTPRoute")["rules"][0]["backendRefs"][0];
    assert_eq!((&backend["name"], &backend["port"]), (name, &port["port"]));
    let path = &of_kind("Ingress")["rules"][0]["http"]["paths"][0];
    let backend = &path["backend"]["service"];
    assert_eq!(
        (&backend["name"], &backend["port"]["name"]),
        (name, &port["name"])
    );
    let monitor = of_kind("PodMonitor");
    let scraped = text(&monitor["podMetricsEndpoints"][0], "port");
    assert_eq!(
        one.ports()[scraped],
        u64::from(one.config.admin.listen.port())
    );
    let deployment = one.of_kind("Deployment").next().expect("a deployment");
    let pods = deployment["spec"]["template"].pointer(LABEL);
    let selected = &monitor["selector"]["matchLabels"]["app.kubernetes.io/name"];
    assert_eq!(Some(selected), pods);
}

#[test]
fn internal_listener_is_open_to_replicas_alone() {
    let Some([_, several]) = overlays() else {
        return;
    };
    let policy = several.of_kind("NetworkPolicy").next().expect("a policy");
    let mut opened = BTreeMap::new();
    for rule in entries(&policy["spec"]["ingress"]) {
        assert_eq!(rule["ports"].as_array().map(Vec::len), Some(1), "{rule}");
        opened.insert(text(&rule["ports"][0], "port"), &rule["from"]);
    }
    let replicas = serde_json::json!([{"podSelector": policy["spec"]["podSelector"]}]);
    assert_eq!(*opened["replicas"], replicas);
    assert!(opened["admin"].is_array(), "{}", opened["admin"]);
    let ports = several.ports();
    assert!(opened.keys().eq(ports.keys()), "{opened:?}");
    let service = several
        .of_kind("Service")
        .find(|object| object["spec"]["clusterIP"] == "None");
    let port = &service.expect("a headless service")["spec"]["ports"][0];
    assert_eq!(
        (text(port, "targetPort"), number(port, "port")),
        ("replicas", ports["replicas"])
    );
}

#[test]
fn variables_of_the_configuration_come_from_the_secret() {
    let Some([one, several]) = overlays() else {
        return;
    };
    assert_eq!(one.variables, BTreeSet::new());
    let told = read(&folder("replicas/kustomization.yaml"));
    let mut given = BTreeSet::new();
    for variable in several.in_container("env") {
        let source = &variable["valueFrom"]["secretKeyRef"];
        let made = format!("create secret generic {}", text(source, "name"));
        let key = format!("--from-literal={}=", text(source, "key"));
        assert!(told.contains(&made) && told.contains(&key), "{source}");
        given.insert(text(variable, "name").to_owned());
    }
    assert_eq!(given, several.variables);
}

#[test]
fn kubectl_builds_every_way_to_install() {
    for (name, is_counted) in [(".", true), ("with-state", true), ("replicas", false)] {
        #[expect(clippy::disallowed_methods, reason = "it is no child of a gateway")]
        let mut kubectl = Command::new("kubectl");
        let Ok(done) = kubectl.arg("kustomize").arg(folder(name)).output() else {
            eprintln!("SKIPPED: there is no kubectl");
            return;
        };
        assert!(done.status.success(), "{name}: {done:#?}");
        let built = String::from_utf8(done.stdout).expect("text");
        assert!(
            !built.contains("name: drawbridge\n        name: config"),
            "{name}: no generated name"
        );
        // Where the autoscaler counts, an applied deployment must not.
        assert_eq!(built.contains("\n  replicas: 1\n"), is_counted, "{name}");
    }
}
