package sparsebench

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"

	"github.com/skepkv/skep"
)

// Trace is what attention over one document activated, step by step: several
// questions asked of it, some steps each.
type Trace struct {
	Document   string  `json:"document"`
	Entries    int     `json:"entries"`
	KVHeads    int     `json:"kv_heads"`
	QueryHeads int     `json:"query_heads"`
	HeadDim    int     `json:"head_dim"`
	Questions  int     `json:"questions"`
	Steps      int     `json:"steps"` // a question
	Activated  int     `json:"activated"`
	Sparsity   float64 `json:"sparsity"`
	NLayers    int     `json:"layers"`

	Layers []Layer `json:"-"`
}

// Layer is one layer of a trace. Vectors are laid one after another.
type Layer struct {
	Keys      []float32  // [entries][KV heads × dim], after RoPE
	Queries   []float32  // [questions × steps][query heads × dim], after RoPE
	Predicted []float32  // the same, as foreseen while the layer before computes
	Activated [][]uint32 // [questions × steps], ascending entries
}

const attnMagic = "KVATTN02"

// ReadTrace reads a trace file, compressed with zstd or not.
func ReadTrace(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = bufio.NewReaderSize(f, 1<<20)
	if head, _ := r.(*bufio.Reader).Peek(4); len(head) == 4 && binary.LittleEndian.Uint32(head) == 0xfd2fb528 {
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	}
	t, err := decodeAttnTrace(r)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", path, err)
	}
	return t, nil
}

func decodeAttnTrace(r io.Reader) (*Trace, error) {
	const op = "trace"
	var head [12]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if string(head[:8]) != attnMagic {
		return nil, skep.Invalidf(op, "magic", fmt.Sprintf("%q", head[:8]), attnMagic)
	}
	n := binary.LittleEndian.Uint32(head[8:])
	if n > 1<<20 {
		return nil, skep.Invalidf(op, "header bytes", n, "at most 1048576")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, err
	}
	t := &Trace{}
	if err := json.Unmarshal(text, t); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name    string
		v, most int
	}{
		{"layers", t.NLayers, 1024}, {"entries", t.Entries, 1 << 16}, {"kv heads", t.KVHeads, 1024}, {"query heads", t.QueryHeads, 1024},
		{"head dimension", t.HeadDim, 1024}, {"questions", t.Questions, 1 << 16}, {"steps", t.Steps, 1 << 12}, {"activated", t.Activated, t.Entries},
	} {
		if f.v < 1 || f.v > f.most {
			return nil, skep.Invalidf(op, f.name, f.v, fmt.Sprintf("1 to %d", f.most))
		}
	}
	if t.QueryHeads%t.KVHeads != 0 {
		return nil, skep.Invalidf(op, "query heads", t.QueryHeads, "a multiple of the KV heads")
	}
	for range t.NLayers {
		l, err := t.decodeLayer(r)
		if err != nil {
			return nil, err
		}
		t.Layers = append(t.Layers, l)
	}
	return t, nil
}

func (t *Trace) decodeLayer(r io.Reader) (l Layer, err error) {
	steps := t.Questions * t.Steps
	if l.Keys, err = readHalves(r, t.Entries*t.KVHeads*t.HeadDim); err != nil {
		return l, err
	}
	if l.Queries, err = readHalves(r, steps*t.QueryHeads*t.HeadDim); err != nil {
		return l, err
	}
	if l.Predicted, err = readHalves(r, steps*t.QueryHeads*t.HeadDim); err != nil {
		return l, err
	}
	raw := make([]byte, 2*t.Activated)
	for range steps {
		if _, err := io.ReadFull(r, raw); err != nil {
			return l, err
		}
		a := make([]uint32, t.Activated)
		for i := range a {
			a[i] = uint32(binary.LittleEndian.Uint16(raw[2*i:]))
			if int(a[i]) >= t.Entries || i > 0 && a[i] <= a[i-1] {
				return l, skep.Invalidf("trace", "activated entry", a[i], fmt.Sprintf("ascending and below %d", t.Entries))
			}
		}
		l.Activated = append(l.Activated, a)
	}
	return l, nil
}

func readHalves(r io.Reader, n int) ([]float32, error) {
	out := make([]float32, 0, min(n, 1<<20))
	raw := make([]byte, 1<<16)
	for n > 0 {
		k := min(n, len(raw)/2)
		if _, err := io.ReadFull(r, raw[:2*k]); err != nil {
			return nil, err
		}
		for i := range k {
			out = append(out, half(binary.LittleEndian.Uint16(raw[2*i:])))
		}
		n -= k
	}
	return out, nil
}

// half is an IEEE 754 binary16 number.
func half(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 0:
		v := float32(frac) / (1 << 24)
		if sign != 0 {
			v = -v
		}
		return v
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

func (t *Trace) keyWidth() int   { return t.KVHeads * t.HeadDim }
func (t *Trace) queryWidth() int { return t.QueryHeads * t.HeadDim }

// byHead is the attention each entry gets in a step of layer l from each query head:
// softmax(q·k/√dim) over the document.
func (t *Trace) byHead(l *Layer, step int) [][]float32 {
	out := make([][]float32, t.QueryHeads)
	group, kw := t.QueryHeads/t.KVHeads, t.keyWidth()
	for h := range out {
		out[h] = make([]float32, t.Entries)
		v := blas32.Vector{N: t.Entries, Inc: 1, Data: out[h]}
		blas32.Gemv(blas.NoTrans, float32(1/math.Sqrt(float64(t.HeadDim))),
			blas32.General{Rows: t.Entries, Cols: t.HeadDim, Stride: kw, Data: l.Keys[h/group*t.HeadDim:]},
			blas32.Vector{N: t.HeadDim, Inc: 1, Data: l.Queries[step*t.queryWidth()+h*t.HeadDim:]}, 0, v)
		most, sum := slices.Max(out[h]), 0.0
		for e, x := range out[h] {
			x := math.Exp(float64(x - most))
			out[h][e] = float32(x)
			sum += x
		}
		blas32.Scal(float32(1/sum), v)
	}
	return out
}

// mass is byHead summed over query heads.
func (t *Trace) mass(l *Layer, step int) []float32 {
	heads := t.byHead(l, step)
	sum := blas32.Vector{N: t.Entries, Inc: 1, Data: heads[0]}
	for _, p := range heads[1:] {
		blas32.Axpy(1, blas32.Vector{N: t.Entries, Inc: 1, Data: p}, sum)
	}
	return heads[0]
}
