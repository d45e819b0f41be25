//! The handle over a real Redis: what it does while the server is gone, silent or read-only, and how it comes back.

use std::time::{Duration, Instant};

use drawbridge::config::{RedisConfig, RedisTopology};
use drawbridge::redis_client::{
    ANSWER_WITHIN, MAX_COMMANDS, RedisClient, RedisFailure, RedisScript, cmd,
};
use drawbridge::secret::Secret;
use rustix::process::Signal;

use crate::harness::eventually;
use crate::harness::redis::{self, RedisServer};

async fn set(client: &RedisClient, name: &str, value: &str) -> Result<(), RedisFailure> {
    let mut command = cmd("SET");
    command.arg(client.key(name)).arg(value).arg("EX").arg(60);
    client.command("set", &command).await
}

async fn get(client: &RedisClient, name: &str) -> Result<Option<String>, RedisFailure> {
    let mut command = cmd("GET");
    command.arg(client.key(name));
    client.command("get", &command).await
}

#[tokio::test]
async fn commands_and_scripts_run() {
    let Some(server) = redis::server(&[]).await else {
        return;
    };
    let client = server.client().await;
    set(&client, "a", "1").await.unwrap();
    assert_eq!(get(&client, "a").await.unwrap().as_deref(), Some("1"));
    let script = RedisScript::new("return {KEYS[1], ARGV[1]}");
    for _ in 0..2 {
        let keys = [client.key("a")];
        let echoed = client.script("echo", &script, &keys, &[b"x"]).await;
        let echoed: (String, String) = echoed.unwrap();
        assert_eq!(echoed, ("test:a".to_owned(), "x".to_owned()));
    }
}

#[tokio::test]
async fn refused_command_keeps_the_connection() {
    let Some(server) = redis::server(&[]).await else {
        return;
    };
    let client = server.client().await;
    let refused = client.command::<String>("odd", &cmd("NOSUCH")).await;
    assert!(
        matches!(refused, Err(RedisFailure::Refused(_))),
        "{refused:?}"
    );
    assert!(client.is_connected());
    assert_eq!(client.server().borrow().connects, 1);
}

#[tokio::test]
async fn heartbeat_is_sent_beside_too_many_commands() {
    let Some(server) = redis::server(&[]).await else {
        return;
    };
    let client = server.client().await;
    server.signal(Signal::STOP);
    let mut under_way = Vec::new();
    for _ in 0..MAX_COMMANDS {
        let mut command = Box::pin(get(&client, "a"));
        assert!(futures_util::poll!(&mut command).is_pending());
        under_way.push(command);
    }
    let refused = get(&client, "a").await;
    assert!(
        matches!(refused, Err(RedisFailure::TooManyCommands)),
        "{refused:?}"
    );
    let script = RedisScript::new("return 1");
    let sent = client.script::<i64>("heartbeat", &script, &[], &[]).await;
    assert!(matches!(sent, Err(RedisFailure::Silent)), "{sent:?}");
}

#[tokio::test]
async fn restarted_server_is_found_again_and_told_apart() {
    let Some(mut server) = redis::server(&[]).await else {
        return;
    };
    let client = server.client().await;
    let before = client.server().borrow().clone();
    server.kill();
    eventually("the loss is noticed", async || {
        let failed = get(&client, "a").await;
        matches!(failed, Err(RedisFailure::NotConnected)).then_some(())
    })
    .await;
    // Without a connection nothing waits.
    let started = Instant::now();
    assert!(get(&client, "a").await.is_err());
    assert!(started.elapsed() < Duration::from_millis(200));
    server.start().await;
    eventually("it is connected again", async || {
        set(&client, "a", "2").await.ok()
    })
    .await;
    let after = client.server().borrow().clone();
    assert!(after.connects > before.connects);
    assert_ne!(after.run_id, before.run_id);
}

#[tokio::test]
async fn silent_server_fails_in_time_and_comes_back() {
    let Some(server) = redis::server(&[]).await else {
        return;
    };
    let client = server.client().await;
    server.signal(Signal::STOP);
    let started = Instant::now();
    let silent = get(&client, "a").await;
    assert!(matches!(silent, Err(RedisFailure::Silent)), "{silent:?}");
    assert!(started.elapsed() < ANSWER_WITHIN * 2);
    server.signal(Signal::CONT);
    eventually("it answers again", async || get(&client, "a").await.ok()).await;
}

#[tokio::test]
async fn replica_is_no_server_to_use() {
    let (Some(master), Some(replica)) = (redis::server(&[]).await, redis::server(&[]).await) else {
        return;
    };
    let follow = |client: RedisClient, port: Option<u16>| async move {
        let mut command = cmd("REPLICAOF");
        match port {
            Some(port) => command.arg("127.0.0.1").arg(port),
            None => command.arg("NO").arg("ONE"),
        };
        client.command::<()>("replicaof", &command).await.unwrap();
    };
    let client = replica.client().await;
    follow(client.clone(), Some(master.port)).await;
    let refused = set(&client, "a", "1").await;
    assert!(
        matches!(refused, Err(RedisFailure::Refused(_))),
        "{refused:?}"
    );
    // Each further connection asks for the role.
    eventually("the connection is given up", async || {
        (!client.is_connected()).then_some(())
    })
    .await;
    assert!(set(&client, "a", "1").await.is_err());
}

#[tokio::test]
async fn user_of_one_prefix_is_enough() {
    let Some(server) = redis::server(&[]).await else {
        return;
    };
    let admin = server.client().await;
    let mut command = cmd("ACL");
    command
        .arg(&[
            "SETUSER", "gate", "on", ">word", "~test:*", "&test:*", "+@all",
        ])
        .arg(&["-@admin", "+info"]);
    admin.command::<()>("acl", &command).await.unwrap();
    let config = RedisConfig {
        user: Some("gate".to_owned()),
        password: Some(Secret::new("word")),
        ..server.config()
    };
    let client = redis::connected(&config).await;
    set(&client, "a", "1").await.unwrap();
    let mut foreign = cmd("GET");
    foreign.arg("other:a");
    let refused = client.command::<Option<String>>("get", &foreign).await;
    assert!(
        matches!(refused, Err(RedisFailure::Refused(_))),
        "{refused:?}"
    );
}

/// Starts a sentinel that watches `master` as `main`.
async fn sentinel(master: &RedisServer) -> Option<RedisServer> {
    let file = master.dir().join("sentinel.conf");
    let text = format!("sentinel monitor main 127.0.0.1 {} 1\n", master.port);
    std::fs::write(&file, text).unwrap();
    redis::sentinel(&file, None).await
}

#[tokio::test]
async fn sentinels_name_the_server() {
    let Some(master) = redis::server(&[]).await else {
        return;
    };
    let sentinel = sentinel(&master).await.unwrap();
    let config = RedisConfig {
        topology: RedisTopology::Sentinel {
            master: "main".to_owned(),
            password: None,
        },
        // The first one is gone.
        nodes: vec![
            ("127.0.0.1".to_owned(), redis::free_port()),
            ("127.0.0.1".to_owned(), sentinel.port),
        ],
        ..master.config()
    };
    let client = redis::connected(&config).await;
    set(&client, "a", "1").await.unwrap();
    let direct = master.client().await;
    assert_eq!(get(&direct, "a").await.unwrap().as_deref(), Some("1"));
}

/// Names of keys, one on each node of `cluster`.
async fn names(cluster: &redis::RedisCluster) -> Vec<String> {
    let mut names = vec![None; cluster.nodes.len()];
    for number in 0_u32.. {
        let name = number.to_string();
        let place = cluster.place_of(&format!("test:{name}")).await;
        names[place].get_or_insert(name);
        if names.iter().all(Option::is_some) {
            break;
        }
    }
    names.into_iter().flatten().collect()
}

#[tokio::test]
async fn cluster_with_a_silent_master_is_connected() {
    let Some(cluster) = redis::cluster(3).await else {
        return;
    };
    let names = names(&cluster).await;
    cluster.nodes[2].signal(Signal::STOP);
    let client = cluster.client().await;
    for name in &names[..2] {
        set(&client, name, "1").await.unwrap();
    }
    assert!(set(&client, &names[2], "1").await.is_err());
    cluster.nodes[2].signal(Signal::CONT);
    eventually("it is found again", async || {
        set(&client, &names[2], "1").await.ok()
    })
    .await;
}

#[tokio::test]
async fn silent_master_does_not_cost_the_connection() {
    let Some(cluster) = redis::cluster(3).await else {
        return;
    };
    let names = names(&cluster).await;
    let client = cluster.client().await;
    for name in &names {
        set(&client, name, "1").await.unwrap();
    }
    cluster.nodes[2].signal(Signal::STOP);
    for _ in 0..3 {
        let (silent, one, two) = tokio::join!(
            set(&client, &names[2], "2"),
            get(&client, &names[0]),
            get(&client, &names[1]),
        );
        assert!(silent.is_err());
        assert_eq!(one.unwrap().as_deref(), Some("1"));
        assert_eq!(two.unwrap().as_deref(), Some("1"));
        assert!(client.is_connected());
    }
    assert_eq!(client.server().borrow().connects, 1);
    cluster.nodes[2].signal(Signal::CONT);
    eventually("it is found again", async || {
        set(&client, &names[2], "3").await.ok()
    })
    .await;
}

#[tokio::test]
async fn restarted_master_is_told_apart() {
    let Some(mut cluster) = redis::cluster(3).await else {
        return;
    };
    let client = cluster.client().await;
    let before = client.server().borrow().run_id.clone();
    assert_eq!(before.split(',').count(), 3, "{before}");
    cluster.nodes[1].kill();
    cluster.nodes[1].start().await;
    let server = client.server();
    eventually("another run id", async || {
        (server.borrow().run_id != before).then_some(())
    })
    .await;
    assert!(server.borrow().began.is_some());
}
