//! What started the program as one rank of several processes, by the variables that it sets.
//!
//! Nothing of ours carries data between the processes: NCCL's own bootstrap lets them meet where rank 0 listens,
//! if the variable `NCCL_COMM_ID` says where that is.

use std::net::{SocketAddr, ToSocketAddrs};

/// Where rank 0 listens unless the launcher or the user says it.
const PORT: u16 = 29501;

/// Reads a variable.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A launcher, the variables that it sets, and what they say of where rank 0 can listen.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    address: fn(Variables<'_>) -> Result<Option<String>, String>,
}

/// SLURM is the last: in its jobs another launcher's processes have its variables too.
const LAUNCHERS: [Launcher; 3] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        ranks: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        address: after_torchs_store,
    },
    Launcher {
        name: "mpirun of Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        address: here_if_all_are,
    },
    Launcher {
        name: "SLURM",
        rank: "SLURM_PROCID",
        ranks: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        address: on_slurms_first_host,
    },
];

/// This process as one rank of several.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) launcher: &'static str,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Its number among the ranks of this machine.
    pub(crate) local_rank: usize,
    /// Where rank 0 can listen, as `HOST:PORT`, if the launcher says it.
    pub(crate) address: Option<String>,
}

/// The world that a launcher made this process a rank of. The first in the table whose variables are set.
pub(crate) fn find(variable: Variables<'_>) -> Result<Option<World>, String> {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    let launched =
        LAUNCHERS.iter().find(|launcher| is_set(launcher.rank) && is_set(launcher.ranks));
    let Some(launcher) = launched else { return Ok(None) };
    let rank = number(variable, launcher.rank)?;
    let ranks = number(variable, launcher.ranks)?;
    if rank >= ranks {
        return Err(format!("{} is {rank}, and {} is {ranks}", launcher.rank, launcher.ranks));
    }
    Ok(Some(World {
        launcher: launcher.name,
        rank,
        ranks,
        local_rank: number(variable, launcher.local_rank)?,
        address: (launcher.address)(variable)?,
    }))
}

fn number<T: std::str::FromStr>(variable: Variables<'_>, name: &str) -> Result<T, String> {
    let value = variable(name).ok_or_else(|| format!("{name} is not set"))?;
    value.parse().map_err(|_| format!("{name} is {value:?}, which is no number that fits"))
}

/// The port after torchrun's own, where its store listens.
fn after_torchs_store(variable: Variables<'_>) -> Result<Option<String>, String> {
    let Some(host) = variable("MASTER_ADDR").filter(|host| !host.is_empty()) else {
        return Ok(None);
    };
    let stores: u16 = number(variable, "MASTER_PORT")?;
    let port = stores.checked_add(1).ok_or("MASTER_PORT is the last port: none is after it")?;
    Ok(Some(address(&host, port)))
}

/// Open MPI does not say where rank 0 is, but says whether all ranks are on this machine.
fn here_if_all_are(variable: Variables<'_>) -> Result<Option<String>, String> {
    let here = variable("OMPI_COMM_WORLD_LOCAL_SIZE");
    let all_are_here = here.is_some() && here == variable("OMPI_COMM_WORLD_SIZE");
    Ok(all_are_here.then(|| address("127.0.0.1", PORT)))
}

/// SLURM places rank 0 on the step's first host, unless told otherwise. Where it names none, the host that
/// launched the step is the only one known.
fn on_slurms_first_host(variable: Variables<'_>) -> Result<Option<String>, String> {
    let first = variable("SLURM_STEP_NODELIST").and_then(|list| first_host(&list));
    let host = first.or_else(|| variable("SLURM_LAUNCH_NODE_IPADDR"));
    Ok(host.filter(|host| !host.is_empty()).map(|host| address(&host, PORT)))
}

/// The first of a list of hosts as SLURM writes it: `node03` of `node[03-05,9],other`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            return Some(host);
        }
        let (numbers, after) = rest[at + 1..].split_once(']')?;
        host.push_str(numbers.split([',', '-']).next()?);
        rest = after;
    }
    host.push_str(rest);
    (!host.is_empty()).then_some(host)
}

/// `HOST:PORT`, and `[HOST]:PORT` for an IPv6 address.
fn address(host: &str, port: u16) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// `HOST:PORT` with the host's IP address. NCCL looks names up too, but takes no long ones.
pub(crate) fn resolved(address: &str) -> Result<String, String> {
    let found = address.to_socket_addrs().map_err(|error| format!("{address}: {error}"))?;
    let found: Vec<SocketAddr> = found.collect();
    // All ranks have to take the same one, in whatever order they find them.
    let first = found.iter().find(|found| found.is_ipv4()).or(found.first());
    first.map(SocketAddr::to_string).ok_or_else(|| format!("{address}: no such host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<World>, String> {
        find(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const TORCHRUN: [(&str, &str); 5] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "10.0.0.7"),
        ("MASTER_PORT", "29400"),
    ];
    const SLURM: [(&str, &str); 5] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_NODELIST", "gpu[07-08]"),
        ("SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1"),
    ];

    #[test]
    fn no_launcher_is_no_world() {
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[("RANK", "0")]), Ok(None));
        assert_eq!(found(&[("RANK", ""), ("WORLD_SIZE", "")]), Ok(None));
    }

    #[test]
    fn torchrun_has_the_port_after_its_stores() {
        let world = found(&TORCHRUN).unwrap().unwrap();
        let address = Some("10.0.0.7:29401".to_owned());
        let wanted = World { launcher: "torchrun", rank: 3, ranks: 4, local_rank: 1, address };
        assert_eq!(world, wanted);
        let ipv6 = [&TORCHRUN[..3], &[("MASTER_ADDR", "fe80::1"), ("MASTER_PORT", "1")]].concat();
        assert_eq!(found(&ipv6).unwrap().unwrap().address.unwrap(), "[fe80::1]:2");
        assert_eq!(found(&TORCHRUN[..3]).unwrap().unwrap().address, None);
    }

    #[test]
    fn open_mpi_says_only_whether_all_ranks_are_here() {
        let mut variables = vec![
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ];
        assert_eq!(found(&variables).unwrap().unwrap().address, None);
        variables.push(("OMPI_COMM_WORLD_LOCAL_SIZE", "2"));
        let world = found(&variables).unwrap().unwrap();
        assert_eq!((world.rank, world.ranks, world.local_rank), (1, 2, 1));
        assert_eq!(world.address.as_deref(), Some("127.0.0.1:29501"));
        variables[3].1 = "1";
        assert_eq!(found(&variables).unwrap().unwrap().address, None);
    }

    #[test]
    fn slurm_has_rank_0_on_its_first_host() {
        let world = found(&SLURM).unwrap().unwrap();
        assert_eq!((world.launcher, world.rank, world.ranks), ("SLURM", 5, 8));
        assert_eq!(world.address.as_deref(), Some("gpu07:29501"));
        let without_list = [&SLURM[..3], &SLURM[4..]].concat();
        let address = found(&without_list).unwrap().unwrap().address;
        assert_eq!(address.as_deref(), Some("10.1.1.1:29501"));
    }

    #[test]
    fn another_launcher_in_a_job_of_slurm_comes_first() {
        let both = [&SLURM[..], &TORCHRUN[..]].concat();
        assert_eq!(found(&both).unwrap().unwrap().launcher, "torchrun");
    }

    #[test]
    fn the_first_host_of_a_list() {
        for (list, first) in [
            ("alone", "alone"),
            ("one,two", "one"),
            ("node[03-05,9],other", "node03"),
            ("node[7,9]", "node7"),
            ("rack[1-2]-node[04-08]x", "rack1-node04x"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_host("node[1-"), None);
        assert_eq!(first_host(""), None);
    }

    #[test]
    fn what_is_no_number_is_named() {
        for (at, value) in [(0, "x"), (1, "-1"), (2, "1.5"), (4, "65536"), (4, "65535"), (0, "4")] {
            let mut variables = TORCHRUN;
            variables[at].1 = value;
            let error = found(&variables).unwrap_err();
            assert!(error.contains(variables[at].0), "{error}");
        }
        assert_eq!(found(&TORCHRUN[..2]).unwrap_err(), "LOCAL_RANK is not set");
    }

    #[test]
    fn addresses_are_resolved_to_those_of_ip() {
        assert_eq!(resolved("127.0.0.1:80").as_deref(), Ok("127.0.0.1:80"));
        assert_eq!(resolved("[::1]:80").as_deref(), Ok("[::1]:80"));
        assert!(resolved("no port").is_err());
    }
}
