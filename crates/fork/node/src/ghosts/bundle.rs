//! The OCI bundle of a ghost: what its container is.
//!
//! The agent's own has the node's files at the node's paths, mount for mount, since that is what an
//! image's paths mean; a PID, mount, network, IPC and UTS namespace of its own; and a cgroup below
//! the agent's. A bundle that the user brings keeps its file system, namespaces, mounts and limits.
//! Its process is replaced by the ghost's.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use caps::CapSet;
use farfork_restore::GhostLauncher;
use farfork_sys::words;
use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Capability, Linux, LinuxCapabilities, LinuxMemory, LinuxNamespace, LinuxNamespaceType,
    LinuxPids, LinuxResources, Mount, Process, Root, Spec, User,
};

use super::groups;
use crate::error::NodeError;

/// Namespaces of the agent's own bundle.
const NAMESPACES: [LinuxNamespaceType; 5] = [
    LinuxNamespaceType::Pid,
    LinuxNamespaceType::Mount,
    LinuxNamespaceType::Network,
    LinuxNamespaceType::Ipc,
    LinuxNamespaceType::Uts,
];

/// What the user may say about a ghost's container.
#[derive(Clone, Debug, Default)]
pub struct ContainerOptions<'a> {
    /// Directory of a bundle.
    pub bundle: Option<&'a Path>,
    /// Limit of memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Limit of processes and threads.
    pub pids_limit: Option<u64>,
    /// The cgroup in which those of the container are made, below the agent's.
    pub group: Option<&'a str>,
    /// Directories that are empty and in memory; those of a bundle are the bundle's affair.
    pub tmpfs: &'a [PathBuf],
    /// Directories that are empty and read-only: a read-only mount keeps no process from sockets and named
    /// pipes in it.
    pub hidden: &'a [PathBuf],
    /// What of the node is there all the same.
    pub shown: &'a [PathBuf],
    /// Directories of the node in which the container has a layer of its own, in memory: the node's files with
    /// the changes that processes make there.
    pub layered: &'a [PathBuf],
    /// Whether the node's files are read-only there. Its terminals are its own then.
    pub is_read_only: bool,
}

/// Most terminals of a container with its own: the machine has a few thousand for all.
const MOST_TERMINALS: &str = "max=16";

/// The configuration of container `id`. Without a bundle of the user's, its root file system is
/// mounted at `root` before it is made.
pub fn spec(id: &str, root: &Path, options: &ContainerOptions<'_>) -> Result<Spec, NodeError> {
    let mut spec = match options.bundle {
        Some(bundle) => of_user(bundle)?,
        None => own(root, options)?,
    };
    spec.set_process(Some(process()?));
    let mut linux = spec.linux().clone().unwrap_or_default();
    if linux.cgroups_path().is_none() {
        linux.set_cgroups_path(Some(PathBuf::from(groups::name(id, options.group))));
    }
    linux.set_resources(Some(limited(linux.resources().clone().unwrap_or_default(), options)));
    spec.set_linux(Some(linux));
    Ok(spec)
}

fn limited(mut resources: LinuxResources, options: &ContainerOptions<'_>) -> LinuxResources {
    let signed = |limit: u64| i64::try_from(limit).unwrap_or(i64::MAX);
    if let Some(bytes) = options.memory_bytes {
        let mut memory = resources.memory().unwrap_or_default();
        memory.set_limit(Some(signed(bytes)));
        resources.set_memory(Some(memory));
    }
    if let Some(limit) = options.pids_limit {
        let mut pids = LinuxPids::default();
        pids.set_limit(signed(limit));
        resources.set_pids(Some(pids));
    }
    resources
}

fn own(root: &Path, options: &ContainerOptions<'_>) -> Result<Spec, NodeError> {
    let mut linux = empty_linux();
    let namespace = |kind: LinuxNamespaceType| {
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(kind);
        namespace
    };
    linux.set_namespaces(Some(NAMESPACES.map(namespace).to_vec()));
    if options.is_read_only {
        linux.set_sysctl(Some(small_sockets()));
    }
    let mut spec = Spec::default();
    let mut files = Root::default();
    files.set_path(root.to_owned()).set_readonly(Some(false));
    // A mount of /dev that is there keeps runc from making devices in the node's own. It is the root's, so
    // that it is read-only where the root is.
    let devices = root.join("dev");
    let mut mounts = vec![
        mount(Path::new("/proc"), "proc", "proc", &[]),
        mount(Path::new("/dev"), "bind", &devices.to_string_lossy(), &["rbind"]),
    ];
    if options.is_read_only && Path::new("/dev/pts").is_dir() {
        mounts.push(terminals());
    }
    // Those of `tmpfs` may lie in them, and what is shown in both.
    mounts.extend(options.hidden.iter().map(|directory| hidden(directory)));
    for directory in options.tmpfs {
        mounts.push(empty(directory, options.memory_bytes)?);
    }
    mounts.extend(options.shown.iter().map(|path| shown(path)));
    for (number, directory) in options.layered.iter().enumerate() {
        mounts.push(layered(directory, &layer_at(root, number))?);
    }
    spec.set_version("1.0.2".to_owned())
        .set_root(Some(files))
        .set_mounts(Some(mounts))
        .set_hostname(None)
        .set_annotations(None)
        .set_linux(Some(linux));
    Ok(spec)
}

/// What a socket gets before it grows: beyond the limit of all, the kernel still gives each of them that much
/// (cgroup v1), and a container can have thousands.
fn small_sockets() -> HashMap<String, String> {
    let sizes = "4096 16384 1048576";
    ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]
        .map(|name| (name.to_owned(), sizes.to_owned()))
        .into()
}

/// Terminals that no other container sees.
fn terminals() -> Mount {
    let options = ["newinstance", "nosuid", "noexec", "ptmxmode=0666", "mode=0620", MOST_TERMINALS];
    mount(Path::new("/dev/pts"), "devpts", "devpts", &options)
}

/// An empty directory in place of one that the node has. It becomes read-only when all mounts are made.
fn hidden(directory: &Path) -> Mount {
    let options = ["ro", "nosuid", "nodev", "noexec", "mode=0755", "size=1m"];
    mount(directory, "tmpfs", "tmpfs", &options)
}

/// What the node has there, in a directory that is hidden.
fn shown(path: &Path) -> Mount {
    // As this agent sees it: the root of the container may lie in a directory that is hidden by now.
    mount(path, "bind", &path.to_string_lossy(), &["rbind", "rro"])
}

/// Where the layer of this number is mounted before it gets its place in the container, as the root is at `root`.
pub fn layer_at(root: &Path, number: usize) -> PathBuf {
    root.with_file_name("layers").join(number.to_string())
}

/// A directory of the node, with changes of the container's own.
fn layered(directory: &Path, layer: &Path) -> Result<Mount, NodeError> {
    demand_directory(directory)?;
    let options = ["bind", "nosuid", "nodev"];
    Ok(mount(directory, "bind", &layer.to_string_lossy(), &options))
}

/// Refuses what a container cannot have something of its own over.
fn demand_directory(directory: &Path) -> Result<(), NodeError> {
    let wrong =
        |reason: &str| NodeError::Tmpfs { path: directory.to_owned(), reason: reason.to_owned() };
    if !directory.is_absolute() {
        return Err(wrong("its path must be absolute"));
    }
    // Where there is none, runc would make one in the node's own file system.
    if !directory.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Err(wrong("this node has no such directory to mount it over"));
    }
    Ok(())
}

/// An empty directory, writable by all users, in place of one that the node has.
fn empty(directory: &Path, most_bytes: Option<u64>) -> Result<Mount, NodeError> {
    demand_directory(directory)?;
    let size = most_bytes.map(|bytes| format!("size={bytes}"));
    let options: Vec<&str> =
        ["nosuid", "nodev", "mode=1777"].into_iter().chain(size.as_deref()).collect();
    Ok(mount(directory, "tmpfs", "tmpfs", &options))
}

/// Without limits and hidden paths: a clone without a ghost sees its node as it is, too.
fn empty_linux() -> Linux {
    let mut linux = Linux::default();
    let mut resources = LinuxResources::default();
    resources.set_devices(None).set_memory(Some(LinuxMemory::default()));
    linux.set_masked_paths(None).set_readonly_paths(None).set_resources(Some(resources));
    linux
}

fn mount(at: &Path, kind: &str, source: &str, options: &[&str]) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(at.to_owned())
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(PathBuf::from(source)))
        .set_options(Some(options.iter().map(|option| (*option).to_owned()).collect()));
    mount
}

/// A bundle of the user's, with its paths made absolute; refused if no clone could live in it.
fn of_user(bundle: &Path) -> Result<Spec, NodeError> {
    let wrong = |reason: String| NodeError::Bundle { path: bundle.to_owned(), reason };
    let mut spec = Spec::load(bundle.join("config.json"))
        .map_err(|error| wrong(format!("its config.json cannot be read: {}", reason_of(&error))))?;
    if let Some(reason) = obstacle(&spec) {
        return Err(wrong(reason));
    }
    spec.canonicalize_rootfs(bundle).map_err(|error| {
        wrong(format!("its root file system cannot be found: {}", reason_of(&error)))
    })?;
    Ok(spec)
}

fn reason_of(error: &OciSpecError) -> String {
    match error {
        OciSpecError::Io(error) => words::of(error),
        other => other.to_string(),
    }
}

/// Why no clone can run in a container like this.
fn obstacle(spec: &Spec) -> Option<String> {
    let linux = spec.linux().clone().unwrap_or_default();
    let namespaces = linux.namespaces().clone().unwrap_or_default();
    let has = |kind| namespaces.iter().any(|namespace| namespace.typ() == kind);
    let is_own = |kind| {
        namespaces.iter().any(|namespace| namespace.typ() == kind && namespace.path().is_none())
    };
    if ![LinuxNamespaceType::Pid, LinuxNamespaceType::Mount].into_iter().all(is_own) {
        return Some(
            "it lacks a PID and a mount namespace of its own: a ghost's first process is \
                     pid 1 of both, so add them to linux.namespaces, without a path"
                .to_owned(),
        );
    }
    if has(LinuxNamespaceType::User) {
        return Some(
            "it has a user namespace, in which the ids of an image mean other users: \
                     remove it from linux.namespaces"
                .to_owned(),
        );
    }
    if has(LinuxNamespaceType::Time) {
        return Some(
            "it has a time namespace; a clone gets one where it needs one: remove it from \
                     linux.namespaces"
                .to_owned(),
        );
    }
    linux.seccomp().is_some().then(|| {
        "it has a seccomp filter, which would stop the ghost's own calls too: remove linux.seccomp \
         (filters of the image's processes are carried)"
            .to_owned()
    })
}

/// The ghost itself: with all the rights that this agent has, as the init of any other clone.
fn process() -> Result<Process, NodeError> {
    let held = caps::read(None, CapSet::Effective).map_err(|_| {
        NodeError::Agent("cannot read own capabilities; is /proc mounted?".to_owned())
    })?;
    // A capability that the library has no name for cannot be given to a container.
    let held: HashSet<Capability> =
        held.iter().filter_map(|one| one.to_string().strip_prefix("CAP_")?.parse().ok()).collect();
    let mut capabilities = LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(held.clone()))
        .set_effective(Some(held.clone()))
        .set_permitted(Some(held))
        .set_inheritable(None)
        .set_ambient(None);
    let mut process = Process::default();
    process
        .set_terminal(Some(false))
        .set_user(User::default())
        .set_args(Some(GhostLauncher::arguments().to_vec()))
        .set_env(None)
        .set_cwd(PathBuf::from("/"))
        .set_capabilities(Some(capabilities))
        .set_rlimits(None)
        .set_no_new_privileges(Some(false));
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn json(spec: &Spec) -> serde_json::Value {
        serde_json::to_value(spec).unwrap()
    }

    #[test]
    fn a_ghost_has_namespaces_and_a_cgroup_of_its_own_and_the_nodes_files() {
        let options =
            ContainerOptions { memory_bytes: Some(64 << 20), ..ContainerOptions::default() };
        let seen = json(&spec("abc", Path::new("/run/x/root"), &options).unwrap());
        let kinds: Vec<&str> = seen["linux"]["namespaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|namespace| namespace["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["pid", "mount", "network", "ipc", "uts"]);
        assert_eq!(seen["linux"]["cgroupsPath"], "farfork-abc");
        assert_eq!(seen["linux"]["resources"]["memory"]["limit"], 64 << 20);
        assert_eq!(seen["root"]["path"], "/run/x/root");
        assert_eq!(seen["process"]["args"][1], "ghost");
        assert_eq!(seen["process"]["noNewPrivileges"], false);
        // What runc would otherwise do to the node's own /dev, and hide of its /proc and /sys.
        assert_eq!(seen["mounts"][1]["destination"], "/dev");
        for hidden in ["maskedPaths", "readonlyPaths", "seccomp"] {
            assert!(seen["linux"].get(hidden).is_none(), "{hidden}: {seen}");
        }
        assert!(seen.get("hostname").is_none());
    }

    #[test]
    fn directories_in_memory_take_the_places_of_the_nodes() {
        let (tmp, link) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let link = link.path().join("link");
        std::os::unix::fs::symlink(tmp.path(), &link).unwrap();
        let seen = |directory: &Path| {
            let tmpfs = [directory.to_owned()];
            let options = ContainerOptions {
                memory_bytes: Some(4096),
                pids_limit: Some(7),
                tmpfs: &tmpfs,
                ..ContainerOptions::default()
            };
            spec("abc", Path::new("/"), &options)
        };
        let made = json(&seen(tmp.path()).unwrap());
        let mount = &made["mounts"][2];
        assert_eq!(mount["destination"], tmp.path().to_str().unwrap());
        assert_eq!(mount["type"], "tmpfs");
        let options = mount["options"].as_array().unwrap();
        assert!(options.contains(&"size=4096".into()) && options.contains(&"nosuid".into()));
        assert_eq!(made["linux"]["resources"]["pids"]["limit"], 7);
        for (wrong, words) in
            [(Path::new("tmp"), "absolute"), (Path::new("/nowhere"), "no such"), (&link, "no such")]
        {
            let text = seen(wrong).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn directories_are_hidden_but_for_what_is_needed() {
        let (hidden, shown) = ([PathBuf::from("/run")], [PathBuf::from("/run/x/code")]);
        let options =
            ContainerOptions { hidden: &hidden, shown: &shown, ..ContainerOptions::default() };
        let seen = json(&spec("abc", Path::new("/files/at"), &options).unwrap());
        let mounts = &seen["mounts"];
        assert_eq!(
            (&mounts[2]["destination"], &mounts[2]["type"]),
            (&"/run".into(), &"tmpfs".into())
        );
        assert!(mounts[2]["options"].as_array().unwrap().contains(&"ro".into()), "{mounts}");
        assert_eq!(mounts[3]["destination"], "/run/x/code");
        assert_eq!(mounts[3]["source"], "/run/x/code");
    }

    #[test]
    fn what_is_needed_and_layers_lie_on_directories_in_memory() {
        let [tmpfs, shown, layered] =
            [["/tmp"], ["/tmp/x"], ["/var"]].map(|paths| paths.map(PathBuf::from));
        let options = ContainerOptions {
            tmpfs: &tmpfs,
            shown: &shown,
            layered: &layered,
            ..ContainerOptions::default()
        };
        let seen = json(&spec("abc", Path::new("/run/x/root"), &options).unwrap());
        let mounts = &seen["mounts"].as_array().unwrap()[2..];
        let points: Vec<_> = mounts.iter().map(|mount| &mount["destination"]).collect();
        assert_eq!(points, ["/tmp", "/tmp/x", "/var"]);
        assert_eq!(mounts[2]["source"], "/run/x/layers/0");
        assert!(!mounts[2]["options"].as_array().unwrap().contains(&"ro".into()), "{mounts:?}");
        let layered = [PathBuf::from("/nowhere")];
        let options = ContainerOptions { layered: &layered, ..ContainerOptions::default() };
        let text = spec("abc", Path::new("/"), &options).unwrap_err().to_string();
        assert!(text.contains("/nowhere") && text.contains("no such"), "{text}");
    }

    #[test]
    fn a_read_only_container_has_terminals_of_its_own() {
        let points = |is_read_only| {
            let options = ContainerOptions { is_read_only, ..ContainerOptions::default() };
            let seen = json(&spec("abc", Path::new("/run/x/root"), &options).unwrap());
            let mounts = seen["mounts"].as_array().unwrap().clone();
            assert_eq!(mounts[1]["source"], "/run/x/root/dev", "as read-only as the root");
            mounts.iter().filter(|mount| mount["type"] == "devpts").cloned().collect::<Vec<_>>()
        };
        assert!(points(false).is_empty());
        let (own, most) = (points(true), MOST_TERMINALS.into());
        let options = own[0]["options"].as_array().unwrap();
        assert!(options.contains(&"newinstance".into()) && options.contains(&most), "{own:?}");
    }

    fn refused(config: serde_json::Value) -> String {
        let bundle = tempfile::tempdir().unwrap();
        fs::create_dir(bundle.path().join("rootfs")).unwrap();
        fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
        let options =
            ContainerOptions { bundle: Some(bundle.path()), ..ContainerOptions::default() };
        spec("abc", Path::new("/"), &options).unwrap_err().to_string()
    }

    fn config(namespaces: &[&str], more: (&str, serde_json::Value)) -> serde_json::Value {
        let namespaces: Vec<_> =
            namespaces.iter().map(|kind| serde_json::json!({ "type": kind })).collect();
        let mut linux = serde_json::json!({ "namespaces": namespaces });
        linux[more.0] = more.1;
        serde_json::json!({
            "ociVersion": "1.0.2", "root": { "path": "rootfs" }, "linux": linux,
        })
    }

    #[test]
    fn bundles_in_which_no_clone_can_run_are_refused_with_a_reason() {
        let nothing = ("cgroupsPath", serde_json::json!("x"));
        let filter = ("seccomp", serde_json::json!({ "defaultAction": "SCMP_ACT_ALLOW" }));
        for (config, words) in [
            (config(&["mount"], nothing.clone()), "PID"),
            (config(&["pid"], nothing.clone()), "mount namespace"),
            (config(&["pid", "mount", "user"], nothing.clone()), "user namespace"),
            (config(&["pid", "mount", "time"], nothing), "time namespace"),
            (config(&["pid", "mount"], filter), "seccomp"),
        ] {
            let text = refused(config);
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(refused(serde_json::json!("no object")).contains("config.json"));
        let options =
            ContainerOptions { bundle: Some(Path::new("/nowhere")), ..ContainerOptions::default() };
        let text = spec("abc", Path::new("/"), &options).unwrap_err().to_string();
        assert!(text.contains("/nowhere") && text.contains("config.json"), "{text}");
    }

    #[test]
    fn a_bundle_of_the_users_keeps_all_but_its_process() {
        let bundle = tempfile::tempdir().unwrap();
        fs::create_dir(bundle.path().join("rootfs")).unwrap();
        let mut config = config(&["pid", "mount", "uts"], ("cgroupsPath", "/mine".into()));
        config["hostname"] = "spook".into();
        config["process"] =
            serde_json::json!({ "args": ["sh"], "cwd": "/", "user": { "uid": 7, "gid": 7 } });
        fs::write(bundle.path().join("config.json"), config.to_string()).unwrap();
        let options =
            ContainerOptions { bundle: Some(bundle.path()), ..ContainerOptions::default() };
        let seen = json(&spec("abc", Path::new("/"), &options).unwrap());
        assert_eq!(seen["linux"]["cgroupsPath"], "/mine");
        assert_eq!(seen["hostname"], "spook");
        assert_eq!(seen["process"]["args"][1], "ghost");
        assert_eq!(seen["process"]["user"]["uid"], 0);
        let rootfs = bundle.path().join("rootfs").canonicalize().unwrap();
        assert_eq!(seen["root"]["path"], rootfs.to_str().unwrap());
    }
}
