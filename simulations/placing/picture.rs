//! Lines over sizes on logarithmic axes, as an SVG.

/// One panel: a title, its unit, and lines with their names.
pub struct Panel {
    pub title: String,
    pub lines: Vec<(String, Vec<f64>)>,
}

const COLOURS: [&str; 6] = ["#1b6ca8", "#c1440e", "#3a7d44", "#7b4fa3", "#b8860b", "#555555"];
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 300.0;

/// Panels beside each other over common labels.
pub fn svg(labels: &[String], panels: &[Panel]) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        (WIDTH + 120.0) * panels.len() as f64,
        HEIGHT + 90.0
    );
    for (p, panel) in panels.iter().enumerate() {
        let left = 60.0 + p as f64 * (WIDTH + 120.0);
        let values = panel.lines.iter().flat_map(|(_, v)| v).copied().filter(|v| *v > 0.0);
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = (low.max(1e-6).log10().floor(), high.max(1e-5).log10().ceil());
        let x = |i: usize| left + WIDTH * i as f64 / (labels.len().max(2) - 1) as f64;
        let y = |v: f64| {
            40.0 + HEIGHT * (1.0 - (v.max(1e-6).log10() - low).clamp(0.0, high - low) / (high - low).max(1.0))
        };
        out += &format!("<text x=\"{left}\" y=\"22\" font-size=\"13\">{}</text>\n", panel.title);
        for power in low as i32..=high as i32 {
            let at = y(10f64.powi(power));
            out += &format!(
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
                left + WIDTH,
                left - 5.0,
                at + 4.0,
                10f64.powi(power)
            );
        }
        for (i, label) in labels.iter().enumerate() {
            out += &format!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{label}</text>\n",
                x(i),
                58.0 + HEIGHT
            );
        }
        for (l, (name, line)) in panel.lines.iter().enumerate() {
            let colour = COLOURS[l % COLOURS.len()];
            let points: Vec<String> =
                line.iter().enumerate().map(|(i, v)| format!("{:.1},{:.1}", x(i), y(*v))).collect();
            out += &format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{}\" fill=\"{colour}\">{name}</text>\n",
                points.join(" "),
                left + 70.0 * l as f64,
                78.0 + HEIGHT
            );
        }
    }
    out + "</svg>\n"
}
