//! The image is built from all files that the program needs, and both forms of it start the gateway alike.

use std::collections::BTreeSet;

use crate::{read, root};

/// The folders of the tree that `src` includes texts from, itself among them.
fn included() -> BTreeSet<String> {
    let base = root().canonicalize().expect("the tree");
    let mut folders = vec![base.join("src")];
    let mut out = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            for rest in read(&path).split("include_str!(\"").skip(1) {
                let name = rest.split('"').next().unwrap_or_default();
                let file = folder.join(name).canonicalize();
                let file = file.expect("an included file");
                let below = file.strip_prefix(&base).expect("a file of the tree");
                let first = below.components().next().expect("a folder");
                out.insert(first.as_os_str().to_string_lossy().into_owned());
            }
        }
    }
    out
}

#[test]
fn every_text_that_the_program_includes_reaches_the_build_of_the_image() {
    let recipe = read(&root().join("Dockerfile"));
    let context = read(&root().join(".dockerignore"));
    let folders = included();
    assert!(
        folders.contains("config") && folders.contains("src"),
        "{folders:?}"
    );
    for folder in folders {
        let copied = format!("COPY {folder} ./{folder}");
        let is_copied = recipe.lines().any(|line| line == copied);
        assert!(is_copied, "the Dockerfile has no line `{copied}`");
        let kept = format!("!{folder}");
        let is_kept = context.lines().any(|line| line == kept);
        assert!(is_kept, ".dockerignore has no line `{kept}`");
    }
}

/// The instructions of a stage of the Dockerfile, each as one line.
pub(crate) fn stage(name: &str) -> Vec<String> {
    let recipe = read(&root().join("Dockerfile")).replace("\\\n", " ");
    let end = format!(" AS {name}");
    let lines = recipe.lines().map(str::trim);
    lines
        .skip_while(|line| !(line.starts_with("FROM ") && line.ends_with(&end)))
        .skip(1)
        .take_while(|line| !line.starts_with("FROM "))
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

/// What the one line of a stage with this instruction says.
pub(crate) fn said(stage: &[String], instruction: &str) -> String {
    let begin = format!("{instruction} ");
    let lines: Vec<&str> = stage
        .iter()
        .filter_map(|line| line.strip_prefix(begin.as_str()))
        .collect();
    assert_eq!(lines.len(), 1, "{instruction}: {lines:?}");
    lines.concat()
}

/// The words of a command in brackets.
pub(crate) fn words(command: &str) -> Vec<String> {
    let list = command.find('[').and_then(|at| command.get(at..));
    serde_json::from_str(list.expect("a list")).expect("a list of words")
}

#[test]
fn both_images_start_the_same_program_as_the_same_user() {
    let (slim, full) = (stage("slim"), stage("full"));
    for instruction in [
        "USER",
        "WORKDIR",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ] {
        let (one, other) = (said(&slim, instruction), said(&full, instruction));
        assert_eq!(one, other, "{instruction}");
    }
}

#[test]
fn an_image_asks_the_gateway_that_it_starts_for_its_health() {
    let full = stage("full");
    let start = [
        words(&said(&full, "ENTRYPOINT")),
        words(&said(&full, "CMD")),
    ]
    .concat();
    let (program, options) = (&start[2], &start[3..]);
    assert_eq!(start[..2], ["/usr/bin/tini", "--"]);
    assert_eq!(
        options,
        ["serve", "--config", "/etc/drawbridge/gateway.toml"]
    );
    let health = words(&said(&full, "HEALTHCHECK"));
    assert_eq!((&health[0], health[1].as_str()), (program, "health"));
    assert_eq!(health[2..], options[1..]);
}

#[test]
fn the_ports_of_an_image_are_those_of_a_configuration_without_any() {
    let text = "[auth]\nmode = \"none\"\n[upstreams.demo]\nurl = \"https://mcp.example.com/mcp\"\n";
    let config = drawbridge::config::parse(text, "gateway.toml", &|_| None);
    let config = config.expect("a valid configuration");
    let ports = [config.server.listen, config.admin.listen].map(|address| address.port());
    let [public, admin] = ports;
    assert_eq!(said(&stage("full"), "EXPOSE"), format!("{public} {admin}"));
}

#[test]
fn the_user_of_an_image_owns_its_state_directory() {
    let (parts, slim, full) = (stage("parts"), stage("slim"), stage("full"));
    let user = said(&slim, "USER");
    let (uid, gid) = user.split_once(':').expect("user and group");
    let is_in = |stage: &[String], text: &str| stage.iter().any(|line| line.contains(text));
    let state = said(&slim, "WORKDIR");
    let owner = format!("install -d -o {uid} -g {gid} -m 0700 /root/state/drawbridge");
    assert!(is_in(&parts, &owner), "{parts:?}");
    assert!(is_in(
        &parts,
        &format!("drawbridge:x:{uid}:{gid}::{state}:")
    ));
    assert!(is_in(
        &slim,
        &format!("--chown={user} /root/state /var/lib")
    ));
    assert!(is_in(&full, &format!("useradd --uid {uid} --user-group ")));
    let owner = format!("install -d -o drawbridge -g drawbridge -m 0700 {state}");
    assert!(is_in(&full, &owner), "{full:?}");
    // The gateway adds its own name.
    let parent = state.strip_suffix("/drawbridge").expect("its own name");
    for stage in [&slim, &full] {
        assert!(said(stage, "ENV").contains(&format!("XDG_STATE_HOME={parent}")));
    }
    for file in [
        "Dockerfile",
        "docker-compose.yml",
        "docs/operations/container.md",
    ] {
        let text = read(&root().join(file));
        let all = text.split("uid=").skip(1);
        let others: Vec<&str> = all.filter(|rest| !rest.starts_with(uid)).collect();
        assert!(text.contains("uid=") && others.is_empty(), "{file}");
    }
}

#[test]
fn what_the_build_of_the_image_copies_is_there() {
    let context = read(&root().join(".dockerignore"));
    let build = stage("build");
    let lines = build.iter().filter_map(|line| line.strip_prefix("COPY "));
    for line in lines {
        let mut paths: Vec<&str> = line.split_whitespace().collect();
        // Where to.
        paths.pop();
        for path in paths {
            assert!(root().join(path).exists(), "{path}");
            let kept = format!("!{path}");
            let is_kept = context.lines().any(|line| line == kept);
            assert!(is_kept, ".dockerignore has no line `{kept}`");
        }
    }
}

#[test]
fn the_image_is_built_with_the_compiler_of_the_profile() {
    let recipe = read(&root().join("Dockerfile"));
    let mut images = recipe
        .lines()
        .filter_map(|line| line.strip_prefix("ARG BUILD_IMAGE=rust:"));
    let image = images.next().expect("an image of Rust");
    let version = image.split('-').next().unwrap_or_default();
    let profile = format!("rustc-{version}-x86_64-unknown-linux-gnu.profdata");
    assert!(
        root().join("deploy/profile").join(&profile).exists(),
        "no {profile}"
    );
}
