//! `drawbridge check --online`: Redis of `[cluster]`, and `PostgreSQL`.

use drawbridge::database::{Database, DatabasePlace};
use serde_json::Value;
use tokio::process::Command;

use crate::harness::{Setup, postgres, redis, within};

/// A secret that no output may contain.
const SECRET: &str = "hunter22-of-the-operator";

/// Output of a run.
struct Ran {
    code: Option<i32>,
    out: String,
    errors: String,
}

impl Ran {
    /// The row of the store `name`, and the lines below it.
    fn row(&self, name: &str) -> String {
        let lines = self
            .out
            .lines()
            .skip_while(|line| !line.starts_with("STORE"));
        let mut lines = lines.skip_while(|line| !line.starts_with(name));
        let row = lines
            .next()
            .unwrap_or_else(|| panic!("no {name}: {}", self.out));
        let below = lines.take_while(|line| line.starts_with("  "));
        [row]
            .into_iter()
            .chain(below)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Runs `check` on a configuration with these tables and one upstream that is up.
async fn check(tables: &str, options: &[&str]) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let keys = "[keys]\nseal = [{ id = \"k1\", key = \"0123456789abcdef0123456789abcdef\" }]\n\
        vault = [{ id = \"k1\", key = \"0123456789abcdef0123456789abcdef\" }]\n";
    let setup = Setup::open()
        .stub("fine", &[])
        .toml(&format!("{keys}{tables}"));
    std::fs::write(dir.path().join("gateway.toml"), setup.render()).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_drawbridge"))
        .args(["check", "--online", "--config", "gateway.toml"])
        .args(options)
        .current_dir(dir.path())
        .env("XDG_STATE_HOME", dir.path())
        .env_remove("DRAWBRIDGE_LOG")
        .kill_on_drop(true)
        .output();
    let ended = within("the end of check", ended).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let ran = Ran {
        code: ended.status.code(),
        out: text(ended.stdout),
        errors: text(ended.stderr),
    };
    for told in [&ran.out, &ran.errors] {
        assert!(!told.contains(SECRET), "{told}");
    }
    ran
}

fn cluster(port: u16) -> String {
    format!(
        "[cluster]\nredis = \"redis://:{SECRET}@127.0.0.1:{port}\"\nlisten = \"127.0.0.1:8090\"\n\
         secret = \"0123456789abcdef0123456789abcdef\"\n"
    )
}

#[tokio::test]
async fn stores_that_are_down_are_named_and_exit_1() {
    let server = format!(
        "[database]\nurl = \"postgres://gate:{SECRET}@127.0.0.1:{}/gate\"\n",
        redis::free_port()
    );
    let ran = check(&format!("{}{server}", cluster(redis::free_port())), &[]).await;
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.errors);
    for (name, key) in [("Redis", "cluster.redis"), ("PostgreSQL", "database.url")] {
        let row = ran.row(name);
        for word in ["unusable", "refused", "remedy: start", key] {
            assert!(row.contains(word), "{word}: {row}");
        }
    }
}

#[tokio::test]
async fn redis_that_evicts_keys_is_a_warning() {
    let Some(server) = redis::server(&["--requirepass", SECRET]).await else {
        return;
    };
    let ran = check(&cluster(server.port), &["--strict"]).await;
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.errors);
    assert!(ran.row("Redis").contains(" usable"), "{}", ran.out);
    let options = ["--requirepass", SECRET, "--maxmemory-policy", "allkeys-lru"];
    let Some(server) = redis::server(&options).await else {
        return;
    };
    let ran = check(&cluster(server.port), &[]).await;
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.errors);
    let warning = "warning: cluster.redis: Redis evicts keys when its memory is full (maxmemory-policy allkeys-lru)";
    assert!(ran.errors.contains(warning), "{}", ran.errors);
    let ran = check(&cluster(server.port), &["--strict", "--json"]).await;
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["stores"][0]["name"], "Redis");
    assert_eq!(report["stores"][0]["cause"], Value::Null);
    assert_eq!(report["warnings"][0]["key"], "cluster.redis");
}

#[tokio::test]
async fn postgres_without_the_schema_is_named() {
    let Some((_server, place)) = postgres::database().await else {
        return;
    };
    let DatabasePlace::Postgres(url) = &place else {
        panic!("a server");
    };
    let table = format!("[database]\nurl = {:?}\n", url.expose());
    let ran = check(&table, &[]).await;
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.errors);
    let row = ran.row("PostgreSQL");
    assert!(row.contains("run drawbridge migrate"), "{row}");
    let database = Database::connect(&place).await.unwrap();
    database.migrate().await.unwrap();
    database.close().await;
    let ran = check(&table, &[]).await;
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.errors);
    assert!(ran.row("PostgreSQL").contains(" usable"), "{}", ran.out);
}
