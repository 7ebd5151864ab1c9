package page

import (
	"bytes"
	"fmt"
)

// drawPage writes the whole document. It is HTML that is XML as well.
func drawPage(b *bytes.Buffer, r *Report) {
	fmt.Fprintf(b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n", esc(r.Title), style)
	fmt.Fprintf(b, "<header><h1>%s</h1>", esc(r.Title))
	if r.Subtitle != "" {
		fmt.Fprintf(b, "<p>%s</p>", esc(r.Subtitle))
	}
	b.WriteString("</header>\n<main>\n")
	if len(r.Summary) > 0 {
		b.WriteString("<dl class=\"summary\">\n")
		for _, row := range r.Summary {
			fmt.Fprintf(b, `<div><dt>%s</dt><dd class="v">%s</dd>`, esc(row.Name), esc(row.Value))
			if row.Note != "" {
				fmt.Fprintf(b, `<dd class="n">%s</dd>`, esc(row.Note))
			}
			b.WriteString("</div>\n")
		}
		b.WriteString("</dl>\n")
	}
	b.WriteString("<div class=\"charts\">\n")
	for i := range r.Charts {
		drawChart(b, &r.Charts[i], fmt.Sprintf("c%d", i+1))
	}
	b.WriteString("</div>\n")
	if len(r.Notes) > 0 {
		b.WriteString("<section class=\"notes\"><h2>Notes</h2>\n")
		for _, n := range r.Notes {
			fmt.Fprintf(b, "<p>%s</p>\n", esc(n))
		}
		b.WriteString("</section>\n")
	}
	b.WriteString("</main>\n</body>\n</html>\n")
}

// tableRows is how many rows of a long line's points a table shows, spread
// evenly from the first to the last.
const tableRows = 24

// drawTable writes the numbers of a chart, folded away until asked for.
func drawTable(b *bytes.Buffer, c *Chart) {
	if c.empty() {
		return
	}
	row := func(cell string, cells []string) {
		b.WriteString("<tr>")
		for i, text := range cells {
			if i == 0 && cell == "td" {
				fmt.Fprintf(b, `<th scope="row">%s</th>`, esc(text))
			} else {
				fmt.Fprintf(b, `<%s>%s</%s>`, cell, esc(text), cell)
			}
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("<details><summary>Numbers</summary><div class=\"scroll\">")
	switch {
	case c.Kind == Line:
		for _, s := range c.Series {
			fmt.Fprintf(b, "<table><caption>%s</caption>\n", esc(s.Name))
			row("th", []string{c.X.Label, c.Y.Label})
			for _, i := range spread(len(s.Points), tableRows) {
				row("td", []string{format(c.X.Unit, s.Points[i].X), format(c.Y.Unit, s.Points[i].Y)})
			}
			b.WriteString("</table>")
		}
	case c.distribution():
		b.WriteString("<table>\n")
		row("th", []string{"", "count", "p50", "p90", "p99", "p99.9", "max"})
		for _, s := range c.Series {
			cells := []string{s.Name, format("", total(s.Buckets))}
			for _, q := range []float64{.5, .9, .99, .999, 1} {
				text := "none"
				if total(s.Buckets) > 0 {
					text = format(c.X.Unit, quantile(s.Buckets, q))
				}
				cells = append(cells, text)
			}
			row("td", cells)
		}
		b.WriteString("</table>")
	default:
		b.WriteString("<table>\n")
		head := []string{c.X.Label}
		for _, s := range c.Series {
			head = append(head, s.Name)
		}
		row("th", head)
		for k, category := range c.Categories {
			cells := []string{category}
			for _, s := range c.Series {
				cells = append(cells, format(c.Y.Unit, s.Values[k]))
			}
			row("td", cells)
		}
		b.WriteString("</table>")
	}
	b.WriteString("</div></details>\n")
}

// spread picks at most k of the indices 0..n-1, evenly, both ends included.
func spread(n, k int) []int {
	k = min(n, k)
	out := make([]int, k)
	for i := range out {
		if k > 1 {
			out[i] = i * (n - 1) / (k - 1)
		}
	}
	return out
}

// style holds every colour as a variable, once for light and once for dark.
// The series colours were chosen to differ for colour-blind readers in this
// order, and to have contrast enough with either background.
const style = `
:root{--page:#f7f7f5;--card:#fff;--ink:#111;--soft:#55544f;--grid:#e5e4de;--base:#a9a89f;--limit:#6b6a64;--hover:#0000000f;
--s0:#2a78d6;--s1:#eb6834;--s2:#1baf7a;--s3:#c98a00;--s4:#d9609a;--s5:#0b7d0b;--s6:#4a3aa7;--s7:#d63b3a}
@media (prefers-color-scheme:dark){:root{--page:#121211;--card:#1c1c1b;--ink:#f5f5f3;--soft:#bdbcb2;--grid:#31312f;--base:#6b6a64;--limit:#a9a89f;--hover:#ffffff14;
--s0:#4a94ee;--s1:#ee7440;--s2:#22b583;--s3:#dca022;--s4:#e577ab;--s5:#4caf50;--s6:#9b90ec;--s7:#ee6c6b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1400px;padding:2rem 1.5rem;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0}h2{font-size:1.05rem;margin:0}
header p,figcaption p,.notes p{margin:.2rem 0 0;color:var(--soft)}header{margin-bottom:1.4rem}
.summary{display:grid;grid-template-columns:repeat(auto-fit,minmax(190px,1fr));gap:.8rem;margin:0 0 1.2rem}
.summary div,figure{background:var(--card);border:1px solid var(--grid);border-radius:10px}
.summary div{padding:.8rem 1rem}.summary dt{color:var(--soft);font-size:.87rem}
.summary dd{margin:0}.v{font-size:1.55rem;font-weight:600;line-height:1.3}.n{color:var(--soft);font-size:.82rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:1.1rem}
figure{margin:0;padding:1rem 1.1rem;min-width:0}figcaption{margin-bottom:.5rem}
svg{display:block;width:100%;height:auto}
.legend{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;list-style:none;margin:0 0 .4rem;padding:0;font-size:.85rem;color:var(--soft)}
.legend i{display:inline-block;margin-right:.45em;vertical-align:middle}
i.bar{width:11px;height:11px;border-radius:3px;background:var(--c)}i.dash{width:18px;height:0;border-top:3px solid var(--c);border-radius:2px}
i.limit{width:18px;height:0;border-top:2px dashed var(--limit)}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft);font-variant-numeric:tabular-nums}
.xt,.mid,.value,.none{text-anchor:middle}.yt{text-anchor:end}.value{fill:var(--ink);font-size:11px;stroke:var(--card);stroke-width:4px;paint-order:stroke}.none{font-size:15px}
.grid,.base,.mark{stroke:var(--grid);stroke-width:1;fill:none}.base,.mark{stroke:var(--base)}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.area{fill:var(--c);fill-opacity:.16;stroke:var(--c);stroke-width:1.5;stroke-linejoin:round}
path.bar{fill:var(--c);stroke:var(--card);stroke-width:1}path.bar:hover{fill-opacity:.8}
circle{fill:var(--c);stroke:var(--card);stroke-width:1.5}
path.limit{stroke:var(--limit);stroke-width:1.5;stroke-dasharray:6 4;fill:none}
.hit{fill:transparent}.hit:hover{fill:var(--hover)}
details{margin-top:.4rem;font-size:.85rem;color:var(--soft)}summary{cursor:pointer}.scroll{overflow-x:auto}
table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600;padding:.2rem 0}
th,td{text-align:right;padding:.12rem .8rem .12rem 0;border-bottom:1px solid var(--grid);font-weight:400}th:first-child{text-align:left}td{color:var(--ink)}
.notes{margin-top:1.4rem}
@media print{.charts{display:block}figure{break-inside:avoid;margin-bottom:1rem}}
`
