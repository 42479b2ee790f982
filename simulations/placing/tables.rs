//! Egress prices and throughput between cloud regions, read by column name; made up where no file is given.

use std::collections::{BTreeMap, BTreeSet};

use starling::base::Rng;

/// Regions, and what lies between each two of them.
pub struct Tables {
    pub regions: Vec<String>,
    /// USD per GB from, to.
    pub egress: Vec<Vec<f64>>,
    /// Gbit/s from, to.
    pub gbps: Vec<Vec<f64>>,
    pub made_up: bool,
}

type Pairs = BTreeMap<(String, String), f64>;

/// A zone of a region stands for it (`gcp:us-east4-a`).
fn region(text: &str) -> String {
    let text = text.trim();
    match text.rsplit_once('-') {
        Some((head, zone)) if text.starts_with("gcp:") && zone.len() == 1 => head.to_owned(),
        _ => text.to_owned(),
    }
}

/// A list with the columns `src`, `dest`, `cost`.
fn egress(text: &str) -> Result<Pairs, String> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().ok_or("the table is empty")?.split(',').map(str::trim).collect();
    let column = |name: &str| head.iter().position(|h| *h == name).ok_or(format!("no column {name}"));
    let (src, dest, cost) = (column("src")?, column("dest")?, column("cost")?);
    let mut out = Pairs::new();
    for (n, line) in lines.enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |i: usize| cells.get(i).copied().ok_or(format!("row {}: too few cells", n + 2));
        let usd: f64 = cell(cost)?.trim().parse().map_err(|_| format!("row {}: no price", n + 2))?;
        out.insert((region(cell(src)?), region(cell(dest)?)), usd);
    }
    Ok(out)
}

/// A matrix: a header of regions, then one row for each.
fn matrix(text: &str) -> Result<Pairs, String> {
    let mut lines = text.lines().filter(|l| !l.trim().is_empty());
    let head: Vec<String> =
        lines.next().ok_or("the table is empty")?.split(',').skip(1).map(region).collect();
    let mut out = Pairs::new();
    for line in lines {
        let mut cells = line.split(',');
        let from = region(cells.next().unwrap_or_default());
        for (to, cell) in head.iter().zip(cells) {
            if let Ok(gbps) = cell.trim().parse::<f64>() {
                out.insert((from.clone(), to.clone()), gbps);
            }
        }
    }
    Ok(out)
}

impl Tables {
    /// Of two files; only regions that both know in both directions.
    pub fn read(egress_text: &str, throughput_text: &str) -> Result<Self, String> {
        let (prices, speeds) = (egress(egress_text)?, matrix(throughput_text)?);
        let named = |pairs: &Pairs| pairs.keys().map(|(a, _)| a.clone()).collect::<BTreeSet<_>>();
        let mut regions: Vec<String> = named(&prices).intersection(&named(&speeds)).cloned().collect();
        // Whoever lacks the most pairs goes, until all pairs are there.
        loop {
            let lacks = |a: &String| {
                let one = |x: &String, y: &String| {
                    let key = (x.clone(), y.clone());
                    usize::from(x != y && !(prices.contains_key(&key) && speeds.contains_key(&key)))
                };
                regions.iter().map(|b| one(a, b) + one(b, a)).sum::<usize>()
            };
            let worst = regions.iter().map(|r| (lacks(r), r.clone())).max();
            match worst {
                Some((n, worst)) if n > 0 => regions.retain(|r| *r != worst),
                _ => break,
            }
        }
        if regions.len() < 3 {
            return Err("the two tables have fewer than three regions in common".into());
        }
        let of = |pairs: &Pairs| {
            let cell = |a: &String, b: &String| pairs.get(&(a.clone(), b.clone())).copied().unwrap_or(0.0);
            regions.iter().map(|a| regions.iter().map(|b| cell(a, b)).collect()).collect()
        };
        Ok(Self { egress: of(&prices), gbps: of(&speeds), regions, made_up: false })
    }

    /// Three clouds of some regions: 2 cents inside a cloud, 5 to 12 out of it; 0.3 to 15 Gbit/s.
    pub fn generated(rng: &mut Rng, count: usize) -> Self {
        let cloud: Vec<u64> = (0..count).map(|_| rng.below(3)).collect();
        let out: Vec<f64> = (0..3).map(|_| 0.05 + rng.unit() * 0.07).collect();
        let mut egress = vec![vec![0.0; count]; count];
        let mut gbps = vec![vec![0.0; count]; count];
        for a in 0..count {
            for b in (0..count).filter(|b| *b != a) {
                egress[a][b] = if cloud[a] == cloud[b] { 0.02 } else { out[cloud[a] as usize] };
                gbps[a][b] = 0.3 * 50f64.powf(rng.unit());
            }
        }
        let regions = (0..count).map(|i| format!("cloud{}:region{i}", cloud[i])).collect();
        Self { regions, egress, gbps, made_up: true }
    }
}
