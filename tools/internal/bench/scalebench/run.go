package scalebench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/placement"
)

// Options are those of Run.
type Options struct {
	Nodes      int           // of the cluster
	Zones      int           // that they lie in, in turns
	Racks      int           // of all zones together
	Replicas   int           // of each block
	Blocks     int64         // of chains, each counted once
	BlockBytes int64         // of one
	Rate       int64         // bytes a second that a node sends, and receives, in a repair
	Silence    time.Duration // after which a node is down by itself
	Chain      int           // blocks of the chains that are looked up
	Seed       uint64        // of what is drawn
	Note       func(format string, args ...any)
}

// Result is what skep-bench cluster found.
type Result struct {
	Method     string  `json:"method"`       // how the figures came about
	Nodes      int     `json:"nodes"`        // of the cluster
	Replicas   int     `json:"replicas"`     // of each block
	Blocks     int64   `json:"blocks"`       // of chains, each counted once
	MapBytes   int     `json:"map_bytes"`    // of the map as the nodes agree on it (bytes)
	AddMs      float64 `json:"add_ms"`       // to carry out the last node's addition, measured (ms)
	TableMs    float64 `json:"table_ms"`     // to compute the table of the map, measured (ms)
	NextMs     float64 `json:"next_ms"`      // to compute it from that of the map before, one node being gone, measured (ms)
	Balance    float64 `json:"balance"`      // blocks of the fullest node ÷ the mean
	Asked      float64 `json:"asked"`        // nodes that a lookup of one chain asks, mean
	AskedShare float64 `json:"asked_share"`  // groups of the chain that the busiest of them has ÷ the mean of those asked
	ChainLen   int     `json:"chain_blocks"` // blocks of such a chain
	Changes    []Row   `json:"changes"`      // one for each change of the map
}

// Row is what one change of the map comes to.
type Row struct {
	Change string `json:"change"` // what became of which nodes
	Nodes  int    `json:"nodes"`  // that it is of
	// Of the nodes, those that are down by themselves; the others stay as they are: too many are lost
	Down  int     `json:"down"`
	Moved float64 `json:"moved"` // share of all copies that are sent
	// copies that are sent ÷ those that have to be: the lost ones, or the share of new nodes
	Least    float64 `json:"least"`
	Lost     float64 `json:"lost"`      // share of the blocks of which no copy is left
	Balance  float64 `json:"balance"`   // copies that the busiest sender sends ÷ the mean of all nodes
	FullSecs float64 `json:"full_secs"` // until all copies are there, the silence not counted (s)
}

// Validate says what of the options cannot be.
func (o *Options) Validate() error {
	const op = "cluster"
	limit := func(name string, v, least, most int64) error {
		if v < least || v > most {
			return skep.Invalidf(op, name, v, fmt.Sprintf("%d to %d", least, most))
		}
		return nil
	}
	for _, err := range []error{
		limit("--nodes", int64(o.Nodes), 4, clustermap.MaxNodes),
		limit("--zones", int64(o.Zones), 1, int64(o.Nodes)),
		limit("--racks", int64(o.Racks), int64(o.Zones), int64(o.Nodes)),
		limit("--replicas", int64(o.Replicas), 1, clustermap.MaxReplicas),
		limit("--blocks", o.Blocks, 1, 1<<40),
		limit("--block-size", o.BlockBytes, 1, 1<<30),
		limit("--rate", o.Rate, 1, 1<<40),
		limit("--chain", int64(o.Chain), 1, 1<<20),
		limit("--down-after in seconds", int64(o.Silence/time.Second), clustermap.MinSilence, clustermap.MaxSilence),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// sim is one cluster.
type sim struct {
	o      *Options
	m      *clustermap.Map
	table  *placement.Table
	blocks []float64 // of each slot
	rng    *rand.Rand
}

// Run makes a cluster and changes it.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Note == nil {
		o.Note = func(string, ...any) {}
	}
	s := &sim{o: &o, rng: rand.New(rand.NewPCG(o.Seed, 1))}
	out := &Result{Nodes: o.Nodes, Replicas: o.Replicas, Blocks: o.Blocks, ChainLen: o.Chain,
		Method: "the product's map and placement; blocks are counts, and times of repairs are reckoned from their rate"}
	add, err := s.found(ctx)
	if err != nil {
		return nil, err
	}
	text, err := s.m.Encode()
	if err != nil {
		return nil, err
	}
	out.MapBytes, out.AddMs = len(text), ms(add)
	began := time.Now()
	s.table = placement.New(s.m)
	out.TableMs = ms(time.Since(began))
	o.Note("%d nodes: a map of %d bytes, its table in %.0f ms", o.Nodes, out.MapBytes, out.TableMs)
	s.fill()
	out.Balance = s.balance(s.table)
	out.Asked, out.AskedShare = s.lookups()
	rack := s.m.Nodes[0].Domain[1]
	for _, c := range []struct {
		what string
		of   func(i int, n *clustermap.Node) bool
	}{
		{"one node is lost", func(i int, _ *clustermap.Node) bool { return i == o.Nodes/2 }},
		{"1 % of the nodes are lost", func(i int, _ *clustermap.Node) bool { return i%100 == 7 }},
		{"5 % of the nodes are lost", func(i int, _ *clustermap.Node) bool { return i%20 == 7 }},
		{"a rack is lost", func(_ int, n *clustermap.Node) bool { return n.Domain[1] == rack }},
		{"a zone is lost", func(_ int, n *clustermap.Node) bool { return n.Domain[0] == s.m.Nodes[0].Domain[0] }},
	} {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		row, next, err := s.lose(c.of)
		if err != nil {
			return nil, err
		}
		if row.Nodes == 0 {
			continue // so few nodes have no such share
		}
		row.Change = c.what
		out.Changes = append(out.Changes, row)
		if out.NextMs == 0 {
			out.NextMs = ms(next)
		}
		o.Note("%s: %.2f %% of the copies sent in %.0f s", row.Change, 100*row.Moved, row.FullSecs)
	}
	row, err := s.join()
	if err != nil {
		return nil, err
	}
	out.Changes = append(out.Changes, row)
	return out, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// found founds the cluster and adds its nodes, as operators do, and says how long the last one took.
func (s *sim) found(ctx context.Context) (last time.Duration, err error) {
	first := &clustermap.Map{Epoch: 1, Group: clustermap.DefaultGroup, Nodes: []clustermap.Node{s.node(0)}}
	if s.o.Replicas > 1 {
		first.Replicas = s.o.Replicas
	}
	for i := range first.Seed {
		first.Seed[i] = byte(s.rng.Uint32())
	}
	first.Nodes[0].ID = 1
	first.Silence.After = uint32(s.o.Silence / time.Second)
	if s.m, err = s.m.Apply(&clustermap.Command{Do: clustermap.Found, Map: first}); err != nil {
		return 0, err
	}
	for i := 1; i < s.o.Nodes; i++ {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		n := s.node(i)
		began := time.Now()
		if s.m, err = s.m.Apply(&clustermap.Command{Do: clustermap.AddNode, Node: &n}); err != nil {
			return 0, err
		}
		last = time.Since(began)
	}
	return last, nil
}

func (s *sim) node(i int) clustermap.Node {
	rack := i % s.o.Racks
	return clustermap.Node{
		Name: fmt.Sprintf("node-%04d", i), Weight: 1, Addr: fmt.Sprintf("10.%d.%d.%d:7420", rack, i>>8, i&255),
		Peer:   fmt.Sprintf("10.%d.%d.%d:7423", rack, i>>8, i&255),
		Domain: []string{fmt.Sprint("zone-", rack%s.o.Zones), fmt.Sprint("rack-", rack)},
	}
}

// fill draws how many blocks each slot has: chains go by groups.
func (s *sim) fill() {
	s.blocks = make([]float64, placement.Slots)
	mean := float64(s.o.Blocks) / float64(s.m.Group) / placement.Slots
	for i := range s.blocks {
		groups := mean + math.Sqrt(mean)*s.rng.NormFloat64() // Poisson's, of many
		s.blocks[i] = max(0, math.Round(groups)) * float64(s.m.Group)
	}
}

// balance is the copies of the fullest node ÷ the mean.
func (s *sim) balance(t *placement.Table) float64 {
	have := make([]float64, len(s.m.Nodes))
	for slot, n := range s.blocks {
		for _, i := range t.Nodes(uint16(slot)) {
			have[i] += n
		}
	}
	return busiest(have, len(have))
}

func busiest(of []float64, among int) float64 {
	sum := 0.0
	for _, x := range of {
		sum += x
	}
	if sum == 0 {
		return 0
	}
	return slices.Max(of) / (sum / float64(among))
}

// lookups says how many nodes the lookup of a chain asks, and what the busiest of them has to do beside the mean.
func (s *sim) lookups() (asked, share float64) {
	const chains = 200
	space := s.table.Space("tenant", "model")
	for range chains {
		groups := map[int]float64{}
		for i := 0; i < s.o.Chain; i += s.m.Group {
			var key skep.Key
			for b := range key {
				key[b] = byte(s.rng.Uint32())
			}
			groups[s.table.Node(s.table.Slot(space, key))]++
		}
		var each []float64
		for _, n := range groups {
			each = append(each, n)
		}
		asked += float64(len(groups)) / chains
		share += busiest(each, len(each)) / chains
	}
	return asked, share
}

// lose has nodes be lost, and be down as far as they are so by themselves.
func (s *sim) lose(of func(i int, n *clustermap.Node) bool) (row Row, table time.Duration, err error) {
	now := s.m
	lost := make([]bool, len(s.m.Nodes))
	for i := range s.m.Nodes {
		n := &s.m.Nodes[i]
		if lost[i] = of(i, n); !lost[i] {
			continue
		}
		row.Nodes++
		if !now.MayEnd(n) {
			continue
		}
		row.Down++
		c := clustermap.Command{Do: clustermap.SetState, Name: n.Name, ID: n.ID, State: clustermap.Down}
		if now, err = now.Apply(&c); err != nil {
			return row, 0, err
		}
	}
	if row.Nodes == 0 {
		return row, 0, nil
	}
	began := time.Now()
	next := s.table.Next(s.m, now)
	table = time.Since(began)
	least := 0.0
	for slot, n := range s.blocks {
		for _, i := range s.table.Nodes(uint16(slot)) {
			if lost[i] && now.Nodes[i].State == clustermap.Down {
				least += n
			}
		}
	}
	s.sent(&row, s.table, next, lost, least)
	return row, table, nil
}

// join has the last node join the others.
func (s *sim) join() (Row, error) {
	last := len(s.m.Nodes) - 1
	was, err := s.m.Apply(&clustermap.Command{Do: clustermap.RemoveNode, Name: s.m.Nodes[last].Name})
	if err != nil {
		return Row{}, err
	}
	row := Row{Change: "a node joins", Nodes: 1}
	all := 0.0
	for _, n := range s.blocks {
		all += n * float64(s.table.Copies())
	}
	s.sent(&row, s.table.Next(s.m, was), s.table, make([]bool, len(s.m.Nodes)), all/float64(len(s.m.Nodes)))
	return row, nil
}

// sent reckons what nodes send each other between two tables. least is how many copies have to be sent.
func (s *sim) sent(row *Row, was, next *placement.Table, lost []bool, least float64) {
	out, in := make([]float64, len(lost)), make([]float64, len(lost))
	all, moved, gone, blocks := 0.0, 0.0, 0.0, 0.0
	for slot, n := range s.blocks {
		had, has := was.Nodes(uint16(slot)), next.Nodes(uint16(slot))
		all, blocks = all+n*float64(len(had)), blocks+n
		from := slices.IndexFunc(had, func(i uint16) bool { return !lost[i] })
		if from < 0 {
			gone += n
			continue
		}
		for _, i := range has {
			if !slices.Contains(had, i) && !lost[i] {
				moved += n
				out[had[from]] += n
				in[i] += n
			}
		}
	}
	row.Moved, row.Lost = moved/all, gone/blocks
	if least > 0 {
		row.Least = moved / least
	}
	up := 0
	for i := range lost {
		if !lost[i] {
			up++
		}
	}
	row.Balance = busiest(out, up)
	row.FullSecs = max(slices.Max(out), slices.Max(in)) * float64(s.o.BlockBytes) / float64(s.o.Rate)
}
