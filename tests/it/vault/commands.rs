//! `drawbridge migrate`, `drawbridge vault`, and a gateway with a database, from outside.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use drawbridge::clock::SystemClock;
use drawbridge::vault::key_file;
use tokio::process::Command;

use super::*;

const REST: &str = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
    [auth]\nmode = \"none\"\n[upstreams.a]\ncommand = \"sh\"\n";

/// A machine: a configuration and a state directory.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(lines: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("gateway.toml"), format!("{REST}{lines}")).unwrap();
        Self { dir }
    }

    fn state(&self) -> std::path::PathBuf {
        self.dir.path().join("drawbridge")
    }

    async fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_drawbridge"))
            .args(args)
            .arg("--config")
            .arg(self.dir.path().join("gateway.toml"))
            .env("XDG_STATE_HOME", self.dir.path())
            .env("HOME", self.dir.path())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap()
    }

    /// Runs a command that must succeed; what it says.
    async fn says(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{args:?}: {out}{err}");
        out + &err
    }

    /// A vault as the gateway of this machine has it.
    async fn vault(&self) -> Vault {
        let place = DatabasePlace::Sqlite(self.state().join("drawbridge.db"));
        let key = key_file(&self.state().join("vault.key")).unwrap();
        let keys = VaultKeys::new(&[key]).unwrap();
        let database = Database::open(&place).await.unwrap();
        Vault::new(database, keys, Arc::new(SystemClock))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn vault_is_listed_and_revoked_without_secrets() {
    let machine = Machine::new("");
    let none = machine.says(&["vault", "list"]).await;
    assert!(none.contains("no database yet"), "{none}");
    assert!(!machine.state().exists(), "asking makes nothing");
    let made = machine.says(&["migrate"]).await;
    assert!(made.contains("drawbridge.db: schema 2, from 0"), "{made}");
    let again = machine.says(&["migrate"]).await;
    assert!(again.contains("nothing to do"), "{again}");
    let vault = machine.vault().await;
    vault
        .put_grant(&key("alice"), &record("marked"))
        .await
        .unwrap();
    vault
        .put_grant(&key("bob"), &record("marked"))
        .await
        .unwrap();
    for name in ["drawbridge.db", "vault.key"] {
        assert_eq!(mode(&machine.state().join(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&machine.state()), 0o700);
    let listed = machine.says(&["vault", "list"]).await;
    let json = machine.says(&["vault", "list", "--json"]).await;
    for part in ["tracker", "https://as.test", "Alice", "read", "default"] {
        assert!(listed.contains(part), "{part}: {listed}");
        assert!(json.contains(part), "{part}: {json}");
    }
    assert!(!listed.contains("marked") && !json.contains("marked"));
    let whose = owner("alice").to_string();
    let alone = ["vault", "revoke", "--principal", &whose];
    let revoked = machine.says(&alone).await;
    assert!(revoked.contains("accounts removed: 1;"), "{revoked}");
    assert_eq!(token(&vault, &key("alice")).await, None);
    assert!(token(&vault, &key("bob")).await.is_some());
    let elsewhere = ["vault", "revoke", "--upstream", "mail"];
    let revoked = machine.says(&elsewhere).await;
    assert!(revoked.contains("accounts removed: 0;"), "{revoked}");
    let revoked = machine.says(&["vault", "revoke", "--all"]).await;
    assert!(revoked.contains("accounts removed: 1;"), "{revoked}");
    // Which ones is never left open.
    let output = machine.run(&["vault", "revoke"]).await;
    assert_eq!(output.status.code(), Some(2));
}

// As another user, or with another state directory, a command does not see the gateway's.
#[tokio::test]
async fn no_database_is_made_to_look_for_accounts_of_users() {
    let machine = Machine::new(
        "[upstreams.t]\nurl = \"https://t.example/mcp\"\n[upstreams.t.auth]\nkind = \"user_key\"\n",
    );
    for args in [
        &["vault", "list"][..],
        &["vault", "revoke", "--all"],
        &["vault", "rotate"],
    ] {
        let said = machine.says(args).await;
        assert!(said.contains("no database yet"), "{args:?}: {said}");
    }
    let json = machine.says(&["vault", "list", "--json"]).await;
    assert_eq!(json, "[]\n");
    assert!(!machine.state().exists(), "asking makes nothing");
}

#[tokio::test]
async fn no_key_is_made_beside_accounts() {
    let machine = Machine::new("");
    machine.says(&["migrate"]).await;
    let vault = machine.vault().await;
    vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    vault.close().await;
    let path = machine.state().join("vault.key");
    std::fs::remove_file(&path).unwrap();
    let output = machine.run(&["vault", "list"]).await;
    assert_eq!(output.status.code(), Some(78));
    let told = text(&output.stderr);
    assert!(told.contains("vault.key, is missing"), "{told}");
    assert!(!path.exists());
    // With another key the account is removed all the same, and its server is not told.
    std::fs::write(&path, "o".repeat(32)).unwrap();
    let revoked = machine.says(&["vault", "revoke", "--all"]).await;
    assert!(revoked.contains("1 of them did not open"), "{revoked}");
}

#[tokio::test]
async fn rotation_says_when_the_old_key_may_go() {
    let machine = Machine::new(
        "[keys]\nvault = [{ id = \"k2\", file = \"new.key\" }, { id = \"first\", file = \"drawbridge/vault.key\" }]\n",
    );
    std::fs::create_dir(machine.state()).unwrap();
    std::fs::write(machine.dir.path().join("new.key"), "n".repeat(32)).unwrap();
    let vault = machine.vault().await;
    vault.put_grant(&key("alice"), &record("a")).await.unwrap();
    let done = machine.says(&["vault", "rotate"]).await;
    assert!(
        done.contains("records sealed again under k2: 1\n"),
        "{done}"
    );
    assert!(done.contains("may leave keys.vault"), "{done}");
    assert_eq!(token(&vault, &key("alice")).await, None, "the old key");
    // A gateway that still seals under a key that is not in the ring any more.
    let stranger = VaultKeys::new(&[SealKey {
        id: "x".to_owned(),
        key: Secret::new("x".repeat(32)),
    }]);
    let place = DatabasePlace::Sqlite(machine.state().join("drawbridge.db"));
    let database = Database::open(&place).await.unwrap();
    let other = Vault::new(database, stranger.unwrap(), Arc::new(SystemClock));
    other.put_grant(&key("bob"), &record("b")).await.unwrap();
    let output = machine.run(&["vault", "rotate"]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("records under other keys: 1;"), "{said}");
}

#[tokio::test]
async fn too_new_schema_ends_every_command_with_78() {
    let machine = Machine::new("");
    machine.says(&["migrate"]).await;
    let place = DatabasePlace::Sqlite(machine.state().join("drawbridge.db"));
    let database = Database::open(&place).await.unwrap();
    let later = "INSERT INTO schema_compatibility (version, oldest) VALUES (99, 98)";
    database.execute(later, &[]).await.unwrap();
    for args in [&["serve"][..], &["migrate"], &["vault", "list"]] {
        let output = machine.run(args).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{args:?}: {said}");
        assert!(said.contains("run a newer drawbridge"), "{args:?}: {said}");
    }
}

#[tokio::test]
async fn unmigrated_postgres_ends_the_start_with_78() {
    let Some(db) = Backend::Postgres.database().await else {
        return;
    };
    let DatabasePlace::Postgres(url) = &db.place else {
        panic!("a server");
    };
    let url = url.expose();
    let keys = "[keys]\nvault = [{ id = \"k1\", key = \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk\" }]\n";
    let machine = Machine::new(&format!("[database]\nurl = \"{url}\"\n{keys}"));
    for args in [&["serve"][..], &["vault", "list"]] {
        let output = machine.run(args).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{args:?}: {said}");
        assert!(said.contains("run drawbridge migrate"), "{args:?}: {said}");
    }
    let made = machine.says(&["migrate"]).await;
    assert!(made.contains("PostgreSQL: schema 2, from 0"), "{made}");
    let listed = machine.says(&["vault", "list"]).await;
    assert!(listed.contains("PRINCIPAL"), "{listed}");
}

#[tokio::test]
async fn why_a_database_does_not_answer_is_said_once() {
    let keys = format!(
        "[keys]\nvault = [{{ id = \"k1\", key = \"{}\" }}]\n",
        "k".repeat(32)
    );
    let database = "[database]\nurl = \"postgres://127.0.0.1:1/a\"\n";
    let machine = Machine::new(&format!("{keys}{database}"));
    let output = machine.run(&["migrate"]).await;
    let said = text(&output.stderr);
    assert_eq!(said.matches("refused").count(), 1, "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[tokio::test]
async fn damaged_files_say_what_to_do() {
    for (name, content, remedy) in [
        ("vault.key", "short", "restore its backup"),
        (
            "drawbridge.db",
            &*"no database ".repeat(400),
            "restore a backup",
        ),
    ] {
        let machine = Machine::new("");
        machine.says(&["migrate"]).await;
        std::fs::write(machine.state().join(name), content).unwrap();
        for args in [&["serve"][..], &["vault", "list"]] {
            let output = machine.run(args).await;
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
            assert!(
                said.contains(&format!("\n    {remedy}")),
                "{args:?}: {said}"
            );
        }
    }
}
