//! Attack test: a child that looks into its siblings and into the gateway, by every way that the kernel has for that. Spec:
//! Linux `Documentation/userspace-api/landlock.rst`; ptrace(2), "Ptrace access mode checking"; proc(5).

use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use super::children::keys_table;
use super::user_key::{KEY, Page};
use crate::harness::gateway::without_capabilities;
use crate::harness::session::Session;
use crate::harness::{Gateway, Setup};

/// The ways, as [`SPY`] names them.
const WAYS: [&str; 11] = [
    "environ",
    "mem",
    "maps",
    "smaps",
    "pagemap",
    "auxv",
    "thread",
    "fd",
    "process_vm_readv",
    "ptrace",
    "pidfd_getfd",
];

/// A server whose tool `spy` tells which ways into the process `pid` are open, and `own` which ways into a process that it
/// has started itself; with `namespace` from a user namespace where it is root. `pid` tells its own, `commands` the command
/// lines of all processes, `environment` what is in the environment of all other processes, `files` which files of a
/// directory hold a text.
const SPY: &str = "
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def did(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), 'refused')
    return result
def syscall(*arguments):
    return did(libc.syscall(*[ctypes.c_long(one) for one in arguments]))
def attach(pid):
    # PTRACE_SEIZE, which ends with this process.
    did(libc.ptrace(0x4206, pid, None, None))
def read_file(pid, name):
    with open(f'/proc/{pid}/{name}', 'rb') as file:
        file.read(1)
def open_file(pid, name):
    os.close(os.open(f'/proc/{pid}/{name}', os.O_RDONLY))
def read_memory(pid):
    class Part(ctypes.Structure):
        _fields_ = [('at', ctypes.c_void_p), ('len', ctypes.c_size_t)]
    held = ctypes.create_string_buffer(8)
    own, other = Part(ctypes.addressof(held), 8), Part(4096, 8)
    try:
        did(libc.process_vm_readv(pid, ctypes.byref(own), 1, ctypes.byref(other), 1, 0))
    except OSError as error:
        # Nothing is mapped there, which is found out after the check.
        if error.errno != 14:
            raise
def get_descriptor(pid):
    handle = os.pidfd_open(pid)
    try:
        os.close(syscall(438, handle, 0, 0))
    finally:
        os.close(handle)
ways = {
    'environ': lambda pid: read_file(pid, 'environ'),
    'mem': lambda pid: open_file(pid, 'mem'),
    'maps': lambda pid: read_file(pid, 'maps'),
    'smaps': lambda pid: read_file(pid, 'smaps'),
    'pagemap': lambda pid: open_file(pid, 'pagemap'),
    'auxv': lambda pid: read_file(pid, 'auxv'),
    'thread': lambda pid: read_file(pid, f'task/{pid}/environ'),
    'fd': lambda pid: os.readlink(f'/proc/{pid}/fd/0'),
    'process_vm_readv': read_memory,
    'ptrace': attach,
    'pidfd_getfd': get_descriptor,
}
def opened(pid):
    found = []
    for name, way in ways.items():
        try:
            way(pid)
            found.append(name)
        except OSError:
            pass
    return found
def become_root():
    user = os.getuid()
    did(libc.unshare(0x10000000))
    try:
        with open('/proc/self/uid_map', 'w') as file:
            file.write(f'0 {user} 1')
    except OSError:
        # For root without capabilities: it has those of the namespace all the same.
        pass
def spied(arguments):
    if arguments['namespace']:
        become_root()
    started = os.fork()
    if started == 0:
        signal.pause()
    own = opened(started)
    os.kill(started, signal.SIGKILL)
    os.waitpid(started, 0)
    return json.dumps({'own': own, 'other': opened(arguments['pid'])})
def beside(act):
    # A process of its own, whose namespace ends with it.
    output, input = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            told = act()
        except Exception as error:
            told = f'failed: {error}'
        os.write(input, told.encode())
        os._exit(0)
    os.close(input)
    with open(output, 'rb') as file:
        told = file.read().decode()
    os.waitpid(helper, 0)
    return told
def everywhere(name):
    found = []
    for pid in os.listdir('/proc'):
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                with open(f'/proc/{pid}/{name}', 'rb') as file:
                    found.append(file.read().decode(errors='replace'))
            except OSError:
                pass
    return ' '.join(found)
def holding(at, text):
    found = []
    for name in sorted(os.listdir(at)):
        with open(f'{at}/{name}', 'rb') as file:
            if text.encode() in file.read():
                found.append(name)
    return json.dumps(found)
tools = {
    'pid': lambda arguments: str(os.getpid()),
    'spy': lambda arguments: beside(lambda: spied(arguments)),
    'commands': lambda arguments: everywhere('cmdline'),
    'environment': lambda arguments: everywhere('environ'),
    'files': lambda arguments: holding(**arguments),
}
for line in sys.stdin:
    message = json.loads(line)
    if 'id' not in message:
        continue
    method = message['method']
    if method == 'initialize':
        answer = {'result': {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}},
            'serverInfo': {'name': 'spy', 'version': '1'}}}
    elif method == 'tools/list':
        answer = {'result': {'tools': [{'name': name, 'inputSchema': {'type': 'object'}} for name in tools]}}
    elif method == 'tools/call':
        text = tools[message['params']['name']](message['params'].get('arguments', {}))
        answer = {'result': {'content': [{'type': 'text', 'text': text}]}}
    else:
        answer = {'error': {'code': -32601, 'message': 'unknown'}}
    print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], **answer}), flush=True)
";

/// Whether a process may make a user namespace here, with the capabilities of root or without.
fn has_user_namespaces(has_capabilities: bool) -> bool {
    let mut unshare = if has_capabilities {
        std::process::Command::new("unshare")
    } else {
        without_capabilities("unshare")
    };
    let made = unshare.args(["--user", "true"]).status();
    made.is_ok_and(|status| status.success())
}

async fn gateway(state: &Path, is_trusted: bool, has_capabilities: bool) -> Gateway {
    let setup = Setup::open()
        .stdio("up", "python3", &["-u", "-c", SPY], "era = \"legacy\"\n")
        .toml(&keys_table(state))
        .toml(&format!("[stdio]\ntrust_children = {is_trusted}"));
    if has_capabilities {
        setup.start().await
    } else {
        Gateway::start_without_capabilities(&setup.render()).await
    }
}

/// The ways into the process `pid` that are open to the child of `user`; all are open into processes of its own.
async fn open_ways(user: &Session, pid: u32, namespace: bool) -> Vec<String> {
    let arguments = json!({"pid": pid, "namespace": namespace});
    let told = user.text("spy", arguments).await;
    let told: Value = serde_json::from_str(&told).expect(&told);
    assert_eq!(told["own"], json!(WAYS), "{told}");
    serde_json::from_value(told["other"].clone()).unwrap()
}

async fn child_of(user: &Session) -> u32 {
    user.text("pid", json!({})).await.parse().unwrap()
}

// With the capabilities that root has, and with those of an ordinary user. Root of a user
// namespace has no rights outside it: there trusted children see nothing either.
#[rstest]
#[tokio::test]
async fn child_sees_nothing_of_its_siblings_and_of_the_gateway(
    #[values(false, true)] is_trusted: bool,
    #[values(false, true)] has_capabilities: bool,
) {
    let state = tempfile::tempdir().unwrap();
    let gw = gateway(state.path(), is_trusted, has_capabilities).await;
    // No other test has this key in a command line or in an environment.
    let key = format!("key at gateway {} alone", gw.pid());
    let page = Page::at(gw.url.clone(), "/connect/up").await;
    page.submit("connect", &key).await;
    let (spy, sibling) = (gw.anonymous(), gw.anonymous());
    let (spy, sibling) = (spy.open("/mcp/up").await, sibling.open("/mcp/up").await);
    let sibling = child_of(&sibling).await;
    assert_ne!(child_of(&spy).await, sibling);
    let none: [&str; 0] = [];
    let of_sibling = open_ways(&spy, sibling, false).await;
    if is_trusted {
        assert!(of_sibling.iter().any(|way| way == "environ"));
    } else {
        assert_eq!(of_sibling, none);
    }
    // Only root sees into the gateway, which has no dump: an ordinary user's child does not, trusted or not.
    if !(is_trusted && has_capabilities) {
        assert_eq!(open_ways(&spy, gw.pid(), false).await, none);
    }
    // What isolates a child takes capabilities away, too.
    let has_namespaces = has_user_namespaces(is_trusted && has_capabilities);
    for pid in [sibling, gw.pid()] {
        if has_namespaces {
            assert_eq!(open_ways(&spy, pid, true).await, none);
        } else {
            let told = spy.text("spy", json!({"pid": pid, "namespace": true}));
            assert!(told.await.starts_with("failed: "), "a namespace of a child");
        }
    }
    // Command lines are public: no key stands in one.
    let commands = spy.text("commands", json!({})).await;
    assert!(commands.contains("python3") && !commands.contains(&key));
    let environment = spy.text("environment", json!({})).await;
    assert_eq!(environment.contains(&key), is_trusted);
    gw.stop().await;
}

// Landlock takes no files from a child: ADR 20. `check` warns of it.
#[rstest]
#[case::in_a_file(false)]
#[case::from_a_variable(true)]
#[tokio::test]
async fn children_read_the_key_of_the_vault_unless_a_variable_has_it(#[case] is_variable: bool) {
    const VAULT_KEY: &str = "the key of the vault, which nobody else may have";
    let state = tempfile::tempdir().unwrap();
    let mut tables = keys_table(state.path());
    let file = state.path().join("vault.key");
    if is_variable {
        std::fs::remove_file(&file).unwrap();
        let place = format!("file = \"{}\"", file.display());
        assert!(tables.contains(&place), "{tables}");
        tables = tables.replace(&place, "key = \"${VAULT_KEY}\"");
    } else {
        std::fs::write(&file, VAULT_KEY).unwrap();
    }
    let setup = Setup::open().stdio("up", "python3", &["-u", "-c", SPY], "era = \"legacy\"\n");
    let config = setup.toml(&tables).render();
    let gw = Gateway::start_with_variable(&config, ("VAULT_KEY", VAULT_KEY)).await;
    let page = Page::at(gw.url.clone(), "/connect/up").await;
    page.submit("connect", KEY).await;
    let user = gw.anonymous();
    let spy = user.open("/mcp/up").await;
    let search = json!({"at": state.path(), "text": VAULT_KEY});
    let held: Vec<String> = serde_json::from_str(&spy.text("files", search).await).unwrap();
    let expected: &[&str] = if is_variable { &[] } else { &["vault.key"] };
    assert_eq!(held, expected);
    let environment = spy.text("environment", json!({})).await;
    assert!(
        !environment.contains(VAULT_KEY),
        "a variable of the gateway"
    );
    let is_warned = gw.log().iter().any(|line| line.contains("keys.vault[0]"));
    assert_eq!(is_warned, !is_variable);
    gw.stop().await;
}
