package gpu

import (
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

// Layer streaming (SwiftCache §3.3): the KV of one layer at a time is in local memory, in one
// of a few buffers, and the rest is in lent memory. Three streams share the work of layer n,
// counted on through all steps:
//
//	load     n into buffer n mod b     when attention n-b has read the buffer and store n-b has
//	compute  qkv n                     at once
//	         write n: the new entries  when load n is done: whole blocks are loaded, and the
//	                                   last one has room for new entries that the load covers
//	         attention n, ffn n        in order
//	store    the new entries of n      when write n is done
//
// So with one buffer, as in the paper, load n goes on beside ffn n-1; with two it goes on
// beside all of layer n-1.
//
// The first layer's load has nothing to go on beside, where no step comes before it. Where the first layers of all blocks are
// resident (Schedule.Resident), in room of their own beside the buffers, they are not loaded, and the first load there is
// goes on beside them.

// Task is what one stream does for one layer.
type Task uint8

const (
	TaskLoad Task = iota
	TaskQKV
	TaskWrite
	TaskAttention
	TaskFFN
	TaskStore
)

var taskText = [...]string{"load", "qkv", "write", "attention", "ffn", "store"}

func (t Task) String() string { return taskText[t] }

// Dependency holds a task of layer n back until another task of layer n - Behind is done.
type Dependency struct {
	Task   Task
	On     Task
	Behind int
}

// Schedule is the order of layer streaming as data: the tasks of each stream, and what holds
// them back beside the order of their stream.
type Schedule struct {
	Buffers int
	// Resident is how many of the model's first layers stay in local memory: room for one more layer of every lent
	// block each. Their new entries are stored as well. 0: none.
	Resident int
	Streams  [3][]Task // load, compute, store
	Waits    []Dependency
}

// Buffer is the buffer that layer n goes through, counted on through all steps of a model of so many layers.
// False: it is resident, in the room of its layer.
func (s Schedule) Buffer(n, layers int) (buffer int, streamed bool) {
	if n%layers < s.Resident {
		return 0, false
	}
	return s.turn(n, layers) % s.Buffers, true
}

// turn counts the layers before n that go through buffers.
func (s Schedule) turn(n, layers int) int { return n - (n/layers+1)*s.Resident }

// on is the layer that a task of layer n waits for by w. False: for none.
func (s Schedule) on(w Dependency, n, layers int) (int, bool) {
	if s.left(w.On, n, layers) && w.Behind == 0 {
		return 0, false
	}
	if w.Task != TaskLoad || s.Resident == 0 {
		return n - w.Behind, n >= w.Behind
	}
	turn, each := s.turn(n, layers)-w.Behind, layers-s.Resident // who had the buffer before
	if turn < 0 {
		return 0, false
	}
	return turn/each*layers + s.Resident + turn%each, true
}

// left says that a task is left out in layer n.
func (s Schedule) left(t Task, n, layers int) bool { return t == TaskLoad && n%layers < s.Resident }

// NewSchedule is the schedule for b buffers, 1 to 64.
func NewSchedule(b int) (Schedule, error) {
	if b < 1 || b > 64 {
		return Schedule{}, skep.Invalidf("layer streaming", "buffers", b, "1 to 64")
	}
	return Schedule{
		Buffers: b,
		Streams: [3][]Task{{TaskLoad}, {TaskQKV, TaskWrite, TaskAttention, TaskFFN}, {TaskStore}},
		Waits: []Dependency{
			{TaskLoad, TaskAttention, b}, // it has read what the load overwrites
			{TaskLoad, TaskStore, b},     // and so has the store
			{TaskWrite, TaskLoad, 0},     // which covers the entries to be written
			{TaskStore, TaskWrite, 0},
		},
	}, nil
}

// Layers is what an engine does for each layer n of a step: queue work on a stream.
// Schedule.Buffer says which buffer to use. Resident layers have no load.
type Layers interface {
	Do(t Task, n int, on Stream)
}

// Pipeline runs steps of a model by a schedule. It is for one goroutine.
type Pipeline struct {
	schedule Schedule
	streams  [3]Stream
	done     map[Task]Counter // of tasks somebody waits for
	next     int
}

// NewPipeline makes the counters the schedule needs on d. The streams are the caller's.
func NewPipeline(d Device, s Schedule, load, compute, store Stream) (*Pipeline, error) {
	if s.Resident < 0 {
		return nil, skep.Invalidf("layer streaming", "resident layers", s.Resident, "0 or more")
	}
	p := &Pipeline{schedule: s, streams: [3]Stream{load, compute, store}, done: map[Task]Counter{}}
	for _, w := range s.Waits {
		if int(w.Task) >= len(taskText) || int(w.On) >= len(taskText) || w.Behind < 0 {
			return nil, skep.Invalidf("layer streaming", "dependency", fmt.Sprintf("%+v", w), "known tasks, 0 or more behind")
		}
		if p.done[w.On] == nil {
			c, err := d.NewCounter()
			if err != nil {
				return nil, err
			}
			p.done[w.On] = c
		}
	}
	return p, nil
}

// Step queues one pass over the given number of layers and returns at once. Steps may follow
// each other without a wait: the counters go on. With resident layers all steps have as many layers.
func (p *Pipeline) Step(layers int, l Layers) {
	for range layers {
		n := p.next
		p.next++
		for i, tasks := range p.schedule.Streams {
			for _, t := range tasks {
				if p.schedule.left(t, n, layers) {
					continue
				}
				for _, w := range p.schedule.Waits {
					if on, ok := p.schedule.on(w, n, layers); w.Task == t && ok {
						p.streams[i].Wait(p.done[w.On], uint64(on+1))
					}
				}
				l.Do(t, n, p.streams[i])
				if c := p.done[t]; c != nil {
					p.streams[i].Signal(c, uint64(n+1))
				}
			}
		}
	}
}

// Cost is what the parts of one layer of one step take.
type Cost struct {
	QKV, Attention, FFN time.Duration
	Load, Store         time.Duration // over the link, alone on it
}

// Total is the time of some steps, one after the other, of so many layers each by the schedule, and of computing alone,
// reckoned task by task. The difference is the exposed transfer time.
func (s Schedule) Total(steps, each int, c Cost) (total, compute time.Duration) {
	layers := steps * each
	lasts := map[Task]time.Duration{TaskLoad: c.Load, TaskQKV: c.QKV, TaskAttention: c.Attention, TaskFFN: c.FFN, TaskStore: c.Store}
	done := map[Task][]time.Duration{}
	var free [3]time.Duration
	for n := range layers {
		for i, tasks := range s.Streams {
			for _, t := range tasks {
				start := free[i]
				if s.left(t, n, each) {
					done[t] = append(done[t], 0) // nobody asks
					continue
				}
				for _, w := range s.Waits {
					if on, ok := s.on(w, n, each); w.Task == t && ok && len(done[w.On]) > on {
						start = max(start, done[w.On][on])
					}
				}
				free[i] = start + lasts[t]
				done[t] = append(done[t], free[i])
			}
		}
	}
	return max(free[0], free[1], free[2]), time.Duration(layers) * (c.QKV + c.Attention + c.FFN)
}
