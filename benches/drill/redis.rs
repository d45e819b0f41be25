//! A real Redis for a run, without files; replicas of several clusters may share it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::place::{Place, Running, free_addr};

/// The sealing key and the cluster secret of the replicas of a run.
const SECRET: &str = "the secret of all replicas of a run of the drill";

/// A running server.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) process: Running,
    addr: SocketAddr,
}

impl Redis {
    /// Starts the `redis-server` of the `PATH`; an error names the package if there is none.
    pub(crate) fn start(place: &Place) -> anyhow::Result<Self> {
        if Command::new("redis-server")
            .arg("--version")
            .output()
            .is_err()
        {
            bail!(
                "redis-server is needed: apt-get install redis-server, or `--no-redis` (`drill bench`) or `--only` \
                 (`drill instructions`) to leave out what takes it"
            );
        }
        let addr = free_addr()?;
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(&place.dir)
            .stdout(Stdio::null());
        let mut process = place.run("redis", &mut command)?;
        process.until_listening(addr)?;
        Ok(Self { process, addr })
    }

    /// Tables that make a gateway a replica of the cluster `prefix`; `more` are lines of `[cluster]`.
    pub(crate) fn tables(&self, prefix: &str, more: &str) -> String {
        format!(
            "\n[keys]\nseal = [{{ id = \"drill\", key = \"{SECRET}\" }}]\n\n[cluster]\nredis = \"redis://{}\"\n\
             listen = \"127.0.0.1:0\"\nsecret = \"{SECRET}\"\nprefix = \"{prefix}\"\n{more}\n",
            self.addr
        )
    }

    /// Bytes that its data and connections take.
    pub(crate) fn used_memory(&self) -> anyhow::Result<u64> {
        number_after(&self.ask("INFO memory")?, "used_memory:")
    }

    /// How many keys fit `pattern`.
    pub(crate) fn keys(&self, pattern: &str) -> anyhow::Result<u64> {
        number_after(&self.ask(&format!("KEYS {pattern}"))?, "*")
    }

    /// Its version.
    pub(crate) fn version(&self) -> anyhow::Result<String> {
        let text = self.ask("INFO server")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        Ok(line.context("no version of Redis")?.trim().to_owned())
    }

    /// The answer to one command.
    fn ask(&self, command: &str) -> anyhow::Result<String> {
        let mut socket = TcpStream::connect(self.addr).context("Redis does not listen")?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(socket, "{command}\r\nQUIT\r\n")?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// The number behind `name` at the beginning of a line.
fn number_after(text: &str, name: &str) -> anyhow::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|number| number.trim().parse().ok());
    number.with_context(|| format!("Redis says nothing of {name}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_redis_are_read() {
        let info = "$40\r\n# Memory\r\nused_memory:912345\r\nused_memory_human:890K\r\n+OK\r\n";
        assert_eq!(number_after(info, "used_memory:").unwrap(), 912_345);
        assert_eq!(number_after("*1\r\n$3\r\nkey\r\n+OK\r\n", "*").unwrap(), 1);
        number_after("-ERR\r\n", "*").unwrap_err();
    }
}
