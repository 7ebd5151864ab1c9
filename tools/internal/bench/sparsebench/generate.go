package sparsebench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/blas/blas32"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index/coact"
)

// GenerateOptions say what Generate makes of a recorded trace.
type GenerateOptions struct {
	Entries   int
	Questions int // 0: as many as were recorded
	Steps     int // of a question; 0: as many as were recorded
	Layers    []int
	Seed      uint64
}

const (
	// MaxGenerated is the largest context that is generated.
	MaxGenerated = 1 << 20
	// generatedRun is how many successive tokens stay together.
	generatedRun = 128
	// generatedNoise is how far keys and queries are moved, in standard deviations of
	// each of their numbers.
	generatedNoise = 0.02
	// topicDims are the dimensions in which parts of a long context differ from each other.
	topicDims = 8
)

// Generate makes a context of another length that is attended to as the recorded one
// is. It is made of parts as long as the recorded document. Each part has all its runs of
// 128 tokens in an order of its own, keys moved by noise; the sinks are in the first part
// only. A question is a recorded one of the same fate (profile, tune or judge), its queries
// moved by noise, and likes some parts better than others, by logits whose spread is that
// with which the recorded questions like one half of their document better than the other.
// What a step activates is computed from keys and queries: the entries with most attention,
// heads weighted as in the recorded step, the same share of all as was recorded.
func Generate(from *Trace, o GenerateOptions) (*Trace, error) {
	if o.Entries < generatedRun || o.Entries > MaxGenerated {
		return nil, skep.Invalidf("generate", "entries", o.Entries, fmt.Sprintf("%d to %d", generatedRun, MaxGenerated))
	}
	if o.Questions == 0 {
		o.Questions = from.Questions
	}
	if o.Steps == 0 {
		o.Steps = from.Steps
	}
	if o.Steps > from.Steps || o.Questions < splits || o.Questions > 1<<16 || from.Questions < splits {
		return nil, skep.Invalidf("generate", "questions and steps", fmt.Sprint(o.Questions, o.Steps), fmt.Sprintf("4 to 65536, 1 to %d", from.Steps))
	}
	t := *from
	t.Document = fmt.Sprintf("%s × %d", from.Document, o.Entries)
	t.Entries, t.Questions, t.Steps, t.Layers = o.Entries, o.Questions, o.Steps, nil
	t.Activated = max(int(math.Round(float64(from.Activated)*float64(o.Entries)/float64(from.Entries))), 1)
	parts := (o.Entries + from.Entries - 1) / from.Entries
	if parts > 1 {
		t.HeadDim += topicDims
	}
	if o.Layers == nil {
		for l := range from.Layers {
			o.Layers = append(o.Layers, l)
		}
	}
	t.NLayers = len(o.Layers)
	for _, l := range o.Layers {
		if l < 0 || l >= len(from.Layers) {
			return nil, skep.Invalidf("generate", "layer", l, fmt.Sprintf("below %d", len(from.Layers)))
		}
		g := generator{from: from, to: &t, layer: &from.Layers[l], parts: parts, rng: rand.New(rand.NewPCG(o.Seed, 0x67656e+uint64(l)))}
		layer, err := g.make()
		if err != nil {
			return nil, err
		}
		t.Layers = append(t.Layers, layer)
	}
	return &t, nil
}

type generator struct {
	from, to *Trace
	layer    *Layer
	parts    int
	rng      *rand.Rand
	source   []int // recorded step of each generated one
}

func (g *generator) make() (Layer, error) {
	var out Layer
	topics := make([][topicDims]float32, g.parts)
	for p := range topics {
		for d := range topicDims {
			topics[p][d] = float32(g.rng.NormFloat64())
		}
	}
	order, part, err := g.sources()
	if err != nil {
		return out, err
	}
	f, t := g.from, g.to
	noise := deviations(g.layer.Keys, f.keyWidth())
	out.Keys = make([]float32, 0, t.Entries*t.keyWidth())
	for i, e := range order {
		for h := range f.KVHeads {
			for d := range f.HeadDim {
				at := h*f.HeadDim + d
				out.Keys = append(out.Keys, g.layer.Keys[int(e)*f.keyWidth()+at]+noise[at]*float32(g.rng.NormFloat64()))
			}
			if g.parts > 1 {
				out.Keys = append(out.Keys, topics[part[i]][:]...)
			}
		}
	}
	out.Queries = g.queries()
	out.Predicted = out.Queries      // nothing is said of what can be foreseen
	at := make([][]int32, f.Entries) // where each recorded entry is
	for i, e := range order {
		at[e] = append(at[e], int32(i))
	}
	gates := map[int]*gate{}
	for step, src := range g.source {
		if gates[src] == nil {
			gates[src] = g.gates(src)
		}
		worth := weigh(t.byHead(&out, step), gates[src].heads)
		for e, factor := range gates[src].rest {
			for _, i := range at[e] {
				worth[i] *= factor
			}
		}
		out.Activated = append(out.Activated, coact.TopSet(worth, t.Activated, nil))
	}
	return out, nil
}

// sources says which recorded entry each generated one is, and of which part.
func (g *generator) sources() (order []uint32, part []int, err error) {
	n := g.from.Entries
	all := make([]int, g.from.Questions*g.from.Steps)
	for i := range all {
		all[i] = i
	}
	bits, err := bitsOf(g.layer, n, all)
	if err != nil {
		return nil, nil, err
	}
	sink := make([]bool, n)
	for _, e := range bits.Sinks() {
		sink[e] = true
	}
	for p := range g.parts {
		for _, r := range g.rng.Perm((n + generatedRun - 1) / generatedRun) {
			for e := r * generatedRun; e < min((r+1)*generatedRun, n) && len(order) < g.to.Entries; e++ {
				s := e
				for p > 0 && sink[s] {
					s = g.rng.IntN(n)
				}
				order, part = append(order, uint32(s)), append(part, p)
			}
		}
	}
	return order, part, nil
}

func (g *generator) queries() []float32 {
	f, t := g.from, g.to
	noise := deviations(g.layer.Queries, f.queryWidth())
	// Longer vectors are divided by more: recorded logits stay what they were.
	stretch := float32(math.Sqrt(float64(t.HeadDim) / float64(f.HeadDim)))
	liking := g.liking() * math.Sqrt(float64(t.HeadDim)/topicDims)
	out := make([]float32, 0, t.Questions*t.Steps*t.queryWidth())
	var fates [splits][]int // recorded questions not used yet
	for q := range t.Questions {
		fate := q % splits
		if len(fates[fate]) == 0 {
			fates[fate] = g.rng.Perm((f.Questions - fate + splits - 1) / splits)
		}
		src := fate + splits*fates[fate][0]
		fates[fate] = fates[fate][1:]
		var topic [topicDims]float32
		for d := range topic {
			topic[d] = float32(liking * g.rng.NormFloat64())
		}
		for s := range t.Steps {
			from := g.layer.Queries[(src*f.Steps+s)*f.queryWidth():]
			for h := range f.QueryHeads {
				for d := range f.HeadDim {
					at := h*f.HeadDim + d
					out = append(out, stretch*(from[at]+noise[at]*float32(g.rng.NormFloat64())))
				}
				if g.parts > 1 {
					out = append(out, topic[:]...)
				}
			}
			g.source = append(g.source, src*f.Steps+s)
		}
	}
	return out
}

// gates are the weights of heads with which attention over the document ranks highest what
// recorded step activated: a head that looks at the question's own tokens, which are not
// recorded, gives the document less than its share. Found by moving weights towards heads
// that like what is missing, from equal ones; the best of what was seen.
func (g *generator) gates(step int) *gate {
	f := g.from
	heads := f.byHead(g.layer, step)
	is := make([]bool, f.Entries)
	for _, e := range g.layer.Activated[step] {
		is[e] = true
	}
	w, best, most := make([]float64, len(heads)), []float64(nil), -1
	for h := range w {
		w[h] = 1
	}
	for range gateRounds {
		hits := 0
		pull, sum := make([]float64, len(heads)), 1e-30
		top := coact.TopSet(weigh(heads, w), f.Activated, nil)
		in := make(map[uint32]bool, len(top))
		for _, e := range top {
			if in[e] = true; is[e] {
				hits++
				continue
			}
			for h := range heads {
				pull[h] -= float64(heads[h][e])
			}
		}
		if hits > most {
			best, most = slices.Clone(w), hits
		}
		for _, e := range g.layer.Activated[step] {
			if !in[e] {
				for h := range heads {
					pull[h] += float64(heads[h][e])
				}
			}
		}
		for _, p := range pull {
			sum = max(sum, math.Abs(p))
		}
		for h := range w {
			w[h] *= math.Exp(gateStep * pull[h] / sum)
		}
	}
	out := &gate{heads: best, rest: map[uint32]float32{}}
	worth := weigh(heads, best)
	top := coact.TopSet(worth, f.Activated, nil)
	last := float32(math.Inf(1))
	for _, e := range top {
		last = min(last, worth[e])
	}
	for _, e := range top {
		if !is[e] {
			out.rest[e] = last / gateMargin / worth[e]
		}
		is[e] = false
	}
	for _, e := range g.layer.Activated[step] {
		if is[e] {
			out.rest[e] = last * gateMargin / max(worth[e], 1e-30)
		}
	}
	return out
}

// gate is what of a recorded step the attention of all heads alike does not explain:
// weights of heads, and factors of the entries that those do not explain either.
type gate struct {
	heads []float64
	rest  map[uint32]float32
}

const (
	gateMargin = 1.5
	gateRounds = 12
	gateStep   = 0.25
)

func weigh(heads [][]float32, w []float64) []float32 {
	out := make([]float32, len(heads[0]))
	for h, p := range heads {
		blas32.Axpy(float32(w[h]), blas32.Vector{N: len(p), Inc: 1, Data: p}, blas32.Vector{N: len(p), Inc: 1, Data: out})
	}
	return out
}

// liking is the standard deviation, over the recorded questions, of the logit of the
// attention the first half of the document gets.
func (g *generator) liking() float64 {
	var logits []float64
	for q := range g.from.Questions {
		mass := g.from.mass(g.layer, q*g.from.Steps)
		var half [2]float64
		for e, m := range mass {
			half[e*2/len(mass)] += float64(m)
		}
		logits = append(logits, math.Log(half[0]/half[1]))
	}
	mean, sq := 0.0, 0.0
	for _, l := range logits {
		mean += l / float64(len(logits))
	}
	for _, l := range logits {
		sq += (l - mean) * (l - mean) / float64(len(logits)-1)
	}
	return math.Sqrt(sq / 2) // the difference of two halves has twice the variance of one
}

// deviations are the standard deviations of each number of rows of width, times
// generatedNoise.
func deviations(rows []float32, width int) []float32 {
	n := float64(len(rows) / width)
	out := make([]float32, width)
	for i := range out {
		sum, sq := 0.0, 0.0
		for r := i; r < len(rows); r += width {
			sum += float64(rows[r])
			sq += float64(rows[r]) * float64(rows[r])
		}
		out[i] = float32(generatedNoise * math.Sqrt(max(sq/n-sum*sum/n/n, 0)))
	}
	return out
}

// splits is how many fates questions have, one after another: a scene profiles two of
// them, tunes on one, judges by one.
const splits = 4
