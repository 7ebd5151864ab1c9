package ttft

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/tools/internal/trace"
)

// Workload is requests of a trace, ready to be sent.
type Workload struct {
	Name     string
	Note     string // what was done to the trace
	Requests []Prompt
}

// Prompt is a request and the content its prefix is made of.
type Prompt struct {
	sim.Request
	// Chain names the content of its prefix, so that prompts that share blocks share
	// bytes: the trace's ids, BlockTokens tokens each.
	Chain       []uint64
	BlockTokens int
}

// LoadOptions choose from a trace.
type LoadOptions struct {
	Path    string
	Context int // tokens a prompt may have
	Max     int // requests
	Skip    int // requests of the trace before the first taken: the cache fills with them
	Seed    uint64
	HitOnly bool // only requests with a stored prefix
}

// spread is how far Mooncake's arrivals, which come in batches about every 3 s, are spread.
const spread = 3 * time.Second

// Load reads a trace. What of a prompt is stored is its longest prefix among all prompts
// before it, skipped ones included. Prompts longer than the context keep what is new (at
// most half the context) and as much of their stored prefix as fits before it. At least one token is
// always new.
func Load(o LoadOptions) (*Workload, error) {
	if strings.Contains(o.Path, ".csv") {
		return loadCSV(o)
	}
	r, err := trace.Open(o.Path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	w := &Workload{Name: baseName(o.Path), Note: "prefix: longest stored by the prompts before"}
	rng := rand.New(rand.NewPCG(o.Seed, 0x74746674))
	seen := map[uint64]struct{}{}
	offsets := map[string]float64{}
	n := 0
	for req, err := range r.All() {
		if err != nil {
			return nil, err
		}
		hit := 0
		for hit < len(req.Blocks) {
			if _, ok := seen[req.Blocks[hit]]; !ok {
				break
			}
			hit++
		}
		for _, b := range req.Blocks[hit:] {
			seen[b] = struct{}{}
		}
		at := req.Time.Seconds()
		if r.Format() == trace.Mooncake {
			at += rng.Float64() * spread.Seconds()
		} else {
			off, ok := offsets[req.Session]
			if !ok { // sessions do not all begin at once
				off = rng.Float64() * sessionsSpread.Seconds()
				offsets[req.Session] = off
			}
			at += off
		}
		if n++; n <= o.Skip {
			continue
		}
		p := clip(req, hit, o.Context)
		if p.At = at; o.HitOnly && p.Prefix == 0 {
			continue
		}
		if w.Requests = append(w.Requests, p); len(w.Requests) >= o.Max {
			break
		}
	}
	if r.Format() == trace.Mooncake {
		w.Note += fmt.Sprintf("; arrivals spread over %v", spread)
	} else {
		w.Note += fmt.Sprintf("; sessions begin within %v", sessionsSpread)
	}
	return w.sorted()
}

const sessionsSpread = 10 * time.Minute

func (w *Workload) sorted() (*Workload, error) {
	if len(w.Requests) == 0 {
		return nil, skep.Invalidf("bench ttft", "--trace", w.Name, "a trace with requests that can be used")
	}
	slices.SortStableFunc(w.Requests, func(a, b Prompt) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
	first := w.Requests[0].At
	for i := range w.Requests {
		w.Requests[i].At -= first
	}
	return w, nil
}

func clip(req trace.Request, hit, context int) Prompt {
	prefix := req.CachedTokens(hit)
	suffix := max(req.InputTokens-prefix, 1)
	suffix = min(suffix, max(context/2, 1))
	prefix = min(prefix, context-suffix)
	prefix = max(prefix/req.BlockTokens*req.BlockTokens, 0)
	p := Prompt{BlockTokens: req.BlockTokens}
	p.Prefix, p.Suffix = prefix, suffix
	p.Chain = slices.Clone(req.Blocks[:prefix/req.BlockTokens])
	return p
}

// loadCSV reads Azure's arrivals and lengths. They do not say what repeats: half of the
// requests have a stored prefix, whose share of the prompt is uniform in 0.3 to 0.95, all of
// them different.
func loadCSV(o LoadOptions) (*Workload, error) {
	f, err := os.Open(o.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var src io.Reader = bufio.NewReader(f)
	if strings.HasSuffix(o.Path, ".zst") {
		z, err := zstd.NewReader(f)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		src = z
	}
	rng := rand.New(rand.NewPCG(o.Seed, 0x617a7572))
	w := &Workload{Name: baseName(o.Path), Note: "no block ids in the trace: half of the prompts have a stored prefix, uniform in 0.3 to 0.95 of the prompt"}
	c := csv.NewReader(src)
	for line := 0; len(w.Requests) < o.Max; line++ {
		row, err := c.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, skep.Invalidf("bench ttft", "--trace", o.Path, err.Error())
		}
		if line <= o.Skip { // the heading too
			continue
		}
		at, err := time.Parse("2006-01-02 15:04:05.9999999", row[0])
		tokens, err2 := strconv.Atoi(row[1])
		if err != nil || err2 != nil || len(row) < 3 {
			return nil, skep.Invalidf("bench ttft", fmt.Sprintf("line %d of the trace", line+1), strings.Join(row, ","), "TIMESTAMP,ContextTokens,GeneratedTokens")
		}
		share := 0.0
		if rng.IntN(2) == 0 {
			share = 0.3 + 0.65*rng.Float64()
		}
		const block = 64
		tokens = min(max(tokens, 1), o.Context)
		p := Prompt{BlockTokens: block}
		p.Prefix = int(share*float64(tokens)) / block * block
		p.Suffix = max(tokens-p.Prefix, 1)
		p.At = float64(at.UnixNano()) / 1e9
		for i := range p.Prefix / block {
			p.Chain = append(p.Chain, uint64(line)<<24|uint64(i))
		}
		if !o.HitOnly || p.Prefix > 0 {
			w.Requests = append(w.Requests, p)
		}
	}
	return w.sorted()
}

func baseName(path string) string {
	_, file, ok := strings.Cut(path[max(strings.LastIndexByte(path, '/'), 0):], "/")
	if !ok {
		file = path
	}
	name, _, _ := strings.Cut(file, ".")
	return name
}

// Pace scales the arrivals so that computing everything would keep the engine busy for the
// share of time given.
func (w *Workload) Pace(utilisation float64, prefill func(tokens int) float64) Workload {
	work := 0.0
	for _, r := range w.Requests {
		work += prefill(r.Prefix + r.Suffix)
	}
	last := w.Requests[len(w.Requests)-1].At
	out := *w
	out.Requests = slices.Clone(w.Requests)
	if last > 0 {
		for i := range out.Requests {
			out.Requests[i].At *= work / utilisation / last
		}
	}
	return out
}
