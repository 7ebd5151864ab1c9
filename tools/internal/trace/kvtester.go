package trace

import (
	"archive/tar"
	"bytes"
	"cmp"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Ids local to a session become distinct: session number + 1 in the upper
// bits, the id in the lower.
const (
	localIDBits   = 40
	maxSessions   = 1<<(64-localIDBits) - 1
	maxAgentDepth = 8
)

type kvSession struct {
	ID          string     `json:"id"`
	BlockSize   rawField   `json:"block_size"`
	HashIDScope string     `json:"hash_id_scope"`
	Requests    []kvRecord `json:"requests"`
}

// kvRecord is a request, or a subagent with requests of its own.
type kvRecord struct {
	T        rawField   `json:"t"`
	In       rawField   `json:"in"`
	Out      rawField   `json:"out"`
	HashIDs  idList     `json:"hash_ids"`
	Model    string     `json:"model"`
	AgentID  string     `json:"agent_id"`
	Requests []kvRecord `json:"requests"`
}

// lane is one conversation: a session's own requests, or one subagent's. A
// request is held as what it changes in its lane's chain, since each prompt
// repeats nearly all of the one before.
type lane struct {
	order       int // breaks ties in time: by session, then by agent
	session     string
	blockTokens int
	recs        []laneRecord
	ids         []uint64 // what all recs add, one after the other

	next  int      // index of the next record
	used  int      // ids consumed
	chain []uint64 // blocks of the last record returned
}

type laneRecord struct {
	time     time.Duration
	in, out  int
	shared   int // blocks kept from the record before
	added    int // blocks that follow them, from ids
	lastFull int // Request.LastValidTokens
	model    string
}

const laneRecordBytes = 72 // what a laneRecord counts against limits.heldBytes

// merger yields the requests of its lanes in order of time.
type merger struct {
	lanes   []*lane // a heap
	scratch []uint64
}

func (m *merger) Len() int      { return len(m.lanes) }
func (m *merger) Swap(i, j int) { m.lanes[i], m.lanes[j] = m.lanes[j], m.lanes[i] }
func (m *merger) Push(x any)    { m.lanes = append(m.lanes, x.(*lane)) }
func (m *merger) Pop() any {
	last := len(m.lanes) - 1
	l := m.lanes[last]
	m.lanes[last] = nil
	m.lanes = m.lanes[:last]
	return l
}

func (m *merger) Less(i, j int) bool {
	a, b := m.lanes[i], m.lanes[j]
	return cmp.Or(cmp.Compare(a.recs[a.next].time, b.recs[b.next].time), cmp.Compare(a.order, b.order)) < 0
}

func (m *merger) next(req *Request) error {
	if len(m.lanes) == 0 {
		return io.EOF
	}
	l := m.lanes[0]
	rec := l.recs[l.next]
	l.chain = append(l.chain[:rec.shared], l.ids[l.used:l.used+rec.added]...)
	l.used += rec.added
	l.next++
	// A copy, so that a caller who writes to Blocks cannot change what the
	// lane's next request is built from.
	m.scratch = append(m.scratch[:0], l.chain...)
	*req = Request{Time: rec.time, InputTokens: rec.in, OutputTokens: rec.out, Blocks: m.scratch,
		BlockTokens: l.blockTokens, LastValidTokens: rec.lastFull, Session: l.session, Model: rec.model}
	if l.next < len(l.recs) {
		heap.Fix(m, 0)
	} else {
		heap.Pop(m)
	}
	return nil
}

// loader reads sessions into a merger.
type loader struct {
	lim      limits
	merger   *merger
	sessions int
	order    int
	held     int64
	buf      bytes.Buffer
	models   map[string]string // one copy of each model name
}

func (l *loader) loadTar(name string, in io.Reader) error {
	tail := &zeroTail{in: in}
	tr := tar.NewReader(tail)
	for {
		h, err := tr.Next()
		if err == io.EOF && tail.zeros < tarEnd {
			err = io.ErrUnexpectedEOF // cut between two members, which archive/tar takes for the end
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return readError(name, 0, err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		member := name + ":" + h.Name
		if h.Typeflag != tar.TypeReg {
			return &FormatError{Name: member, Field: "member type", Value: fmt.Sprintf("%q", h.Typeflag), Limit: "a regular file or a folder"}
		}
		if err := l.load(member, tr); err != nil {
			return err
		}
	}
}

// tarEnd is how many zero bytes end an archive.
const tarEnd = 1024

// zeroTail counts the zero bytes that what was read so far ends in.
type zeroTail struct {
	in    io.Reader
	zeros int
}

func (z *zeroTail) Read(p []byte) (int, error) {
	n, err := z.in.Read(p)
	k := 0
	for k < n && p[n-1-k] == 0 {
		k++
	}
	if k == n {
		k += z.zeros
	}
	z.zeros = k
	return n, err
}

// load reads one session to the end of in.
func (l *loader) load(name string, in io.Reader) error {
	l.buf.Reset()
	n, err := l.buf.ReadFrom(io.LimitReader(in, l.lim.sessionBytes+1))
	if err != nil {
		return readError(name, 0, err)
	}
	if n > l.lim.sessionBytes {
		return &FormatError{Name: name, Field: "session", Value: fmt.Sprintf("over %d bytes", l.lim.sessionBytes),
			Limit: fmt.Sprintf("≤ %d bytes", l.lim.sessionBytes)}
	}
	var s kvSession
	if err := json.Unmarshal(l.buf.Bytes(), &s); err != nil {
		return jsonError(name, l.buf.Bytes(), err)
	}
	at := place{name: name}
	blockTokens, err := at.int("block_size", s.BlockSize, 1, maxBlock)
	if err != nil {
		return err
	}
	var idBase uint64
	switch s.HashIDScope {
	case "local":
		if l.sessions >= maxSessions {
			return at.error("session", fmt.Sprintf("number %d", l.sessions+1), fmt.Sprintf("≤ %d sessions", maxSessions))
		}
		idBase = uint64(l.sessions+1) << localIDBits
	case "global":
	default:
		return at.error("hash_id_scope", shorten([]byte(s.HashIDScope)), "local or global")
	}
	if s.Requests == nil {
		return at.error("requests", "missing", "an array of requests")
	}
	l.sessions++
	return l.addLane(at, idBase, blockTokens, s.ID, s.Requests, 0, 0)
}

// addLane turns records into a lane that starts at the given time, and the
// subagents among them into lanes of their own.
func (l *loader) addLane(at place, idBase uint64, blockTokens int, session string, recs []kvRecord, start time.Duration, depth int) error {
	ln := &lane{order: l.order, session: session, blockTokens: blockTokens}
	l.order++
	var prev []uint64
	last := start
	for i := range recs {
		r := &recs[i]
		here := place{name: at.name, path: fmt.Sprintf("%srequests[%d].", at.path, i)}
		t, err := here.duration("t", r.T, time.Second)
		if err != nil {
			return err
		}
		if t += start; t < last {
			return here.error("t", shorten(r.T), fmt.Sprintf("≥ %g, the request before it", (last-start).Seconds()))
		}
		if t > maxTime {
			return here.error("t", shorten(r.T), fmt.Sprintf("≤ %d, the subagent's start included", int64(maxTime/time.Second)))
		}
		last = t
		if r.Requests != nil {
			if r.HashIDs.present {
				return here.error("hash_ids", "present", "a request or a subagent, not both")
			}
			if depth+1 > maxAgentDepth {
				return here.error("requests", fmt.Sprintf("%d levels deep", depth+1), fmt.Sprintf("≤ %d", maxAgentDepth))
			}
			if err := l.addLane(here, idBase, blockTokens, session+"/"+r.AgentID, r.Requests, t, depth+1); err != nil {
				return err
			}
			continue
		}
		req := Request{BlockTokens: blockTokens}
		if req.InputTokens, err = here.int("in", r.In, 0, maxTokens); err != nil {
			return err
		}
		if req.OutputTokens, err = here.int("out", r.Out, 0, maxTokens); err != nil {
			return err
		}
		if err := here.blocks("in", "hash_ids", &r.HashIDs, &req); err != nil {
			return err
		}
		if idBase != 0 {
			for k, id := range req.Blocks {
				if id >= 1<<localIDBits {
					return here.error("hash_ids", fmt.Sprint(id), fmt.Sprintf("< 2^%d", localIDBits))
				}
				req.Blocks[k] = idBase | id
			}
		}
		shared := 0
		for shared < min(len(prev), len(req.Blocks)) && prev[shared] == req.Blocks[shared] {
			shared++
		}
		prev = req.Blocks
		ln.ids = append(ln.ids, req.Blocks[shared:]...)
		ln.recs = append(ln.recs, laneRecord{time: t, in: req.InputTokens, out: req.OutputTokens, shared: shared,
			added: len(req.Blocks) - shared, lastFull: req.LastValidTokens, model: l.intern(r.Model)})
		l.held += laneRecordBytes + int64(len(req.Blocks)-shared)*8
		if l.held > l.lim.heldBytes {
			return here.error("session", fmt.Sprintf("over %d bytes held", l.lim.heldBytes), fmt.Sprintf("≤ %d bytes for all sessions together", l.lim.heldBytes))
		}
	}
	if len(ln.recs) > 0 {
		heap.Push(l.merger, ln)
	}
	return nil
}

func (l *loader) intern(s string) string {
	if l.models == nil {
		l.models = make(map[string]string)
	}
	if m, ok := l.models[s]; ok {
		return m
	}
	l.models[s] = s
	return s
}

// jsonError says where in a document encoding/json gave up.
func jsonError(name string, doc []byte, err error) error {
	fe := &FormatError{Name: name, Field: "document", Value: "not valid", Limit: "a kv-cache-tester session", Err: err}
	offset := int64(len(doc))
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		offset = typ.Offset
		fe.Field, fe.Value, fe.Limit = cmp.Or(typ.Field, "document"), "a JSON "+typ.Value, "a JSON value that fits "+typ.Type.Kind().String()
	}
	offset = min(max(offset, 0), int64(len(doc)))
	fe.Line = 1 + bytes.Count(doc[:offset], []byte("\n"))
	return fe
}
