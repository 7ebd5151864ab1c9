package trace

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/leaks"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const twoTurns = `{"timestamp": 0, "input_length": 700, "output_length": 50, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 1024, "output_length": 7, "hash_ids": [0, 2]}
`

// mainAndAgent is a session whose subagent starts at 10.5 s and asks between
// the session's second and third request.
const mainAndAgent = `{"id": "s1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [
	{"t": 0.0, "type": "n", "model": "big", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 1.5},
	{"t": 10.25, "type": "s", "model": "big", "in": 200, "out": 9, "hash_ids": [1, 2, 3]},
	{"t": 10.5, "type": "subagent", "agent_id": "agent_001", "requests": [
		{"t": 0.0, "model": "small", "in": 64, "out": 1, "hash_ids": [9]},
		{"t": 2.0, "model": "small", "in": 128, "out": 1, "hash_ids": [9, 10]}]},
	{"t": 12.0, "model": "big", "in": 64, "out": 0, "hash_ids": [1]}]}`

func kvDoc(id, requests string) string {
	return fmt.Sprintf(`{"id": %q, "block_size": 64, "hash_id_scope": "local", "requests": [%s]}`, id, requests)
}

func compress(t testing.TB, plain []byte) []byte {
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	_, err = w.Write(plain)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// archive makes a tar of name, content pairs.
func archive(t testing.TB, files ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "traces/", Typeflag: tar.TypeDir, Mode: 0o755}))
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: files[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[i+1]))}))
		_, err := io.WriteString(w, files[i+1])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// readAll returns every request, its blocks cloned, and the error that ended
// the trace, nil at its end.
func readAll(name string, src io.Reader) ([]Request, error) {
	r, err := NewReader(name, src)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var all []Request
	for req, err := range r.All() {
		if err != nil {
			return all, err
		}
		req.Blocks = slices.Clone(req.Blocks)
		all = append(all, req)
	}
	return all, nil
}

func TestMooncake(t *testing.T) {
	t.Parallel()
	want := []Request{
		{Time: 0, InputTokens: 700, OutputTokens: 50, Blocks: []uint64{0, 1}, BlockTokens: 512, LastValidTokens: 188},
		{Time: 3 * time.Second, InputTokens: 1024, OutputTokens: 7, Blocks: []uint64{0, 2}, BlockTokens: 512},
	}
	for name, src := range map[string][]byte{
		"plain":            []byte(twoTurns),
		"compressed":       compress(t, []byte(twoTurns)),
		"no last newline":  []byte(strings.TrimSpace(twoTurns)),
		"carriage returns": []byte(strings.ReplaceAll(twoTurns, "\n", "\r\n")),
		"blank lines":      []byte("\n \n" + strings.ReplaceAll(twoTurns, "\n", "\n\n")),
		"two frames":       append(compress(t, []byte(twoTurns[:90])), compress(t, []byte(twoTurns[90:]))...),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readAll("x", bytes.NewReader(src))
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	t.Run("tokens of a prefix", func(t *testing.T) {
		assert.Equal(t, 512, want[0].CachedTokens(1))
		assert.Equal(t, 700, want[0].CachedTokens(2))
		assert.Equal(t, 1024, want[1].CachedTokens(9))
	})
	t.Run("other block size", func(t *testing.T) {
		got, err := readAll("x", strings.NewReader(`{"timestamp":1.5,"input_length":17,"output_length":0,"hash_ids":[4,5],"block_size":16}`))
		require.NoError(t, err)
		assert.Equal(t, []Request{{Time: 1500 * time.Microsecond, InputTokens: 17, Blocks: []uint64{4, 5}, BlockTokens: 16, LastValidTokens: 1}}, got)
	})
}

func TestKVTesterSession(t *testing.T) {
	t.Parallel()
	for name, src := range map[string][]byte{
		"plain":             []byte(mainAndAgent),
		"compressed":        compress(t, []byte(mainAndAgent)),
		"archive":           archive(t, "a.json", mainAndAgent),
		"archive, no names": archive(t, "a", mainAndAgent),
		"packed archive":    compress(t, archive(t, "a.json", mainAndAgent)),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readAll("x", bytes.NewReader(src))
			require.NoError(t, err)
			const s = 1 << 40 // the first session's ids
			assert.Equal(t, []Request{
				{Time: 0, InputTokens: 130, OutputTokens: 9, Blocks: []uint64{s | 1, s | 2}, BlockTokens: 64, Session: "s1", Model: "big"},
				{Time: 10250 * time.Millisecond, InputTokens: 200, OutputTokens: 9, Blocks: []uint64{s | 1, s | 2, s | 3}, BlockTokens: 64, Session: "s1", Model: "big"},
				{Time: 10500 * time.Millisecond, InputTokens: 64, OutputTokens: 1, Blocks: []uint64{s | 9}, BlockTokens: 64, Session: "s1/agent_001", Model: "small"},
				{Time: 12 * time.Second, InputTokens: 64, Blocks: []uint64{s | 1}, BlockTokens: 64, Session: "s1", Model: "big"},
				{Time: 12500 * time.Millisecond, InputTokens: 128, OutputTokens: 1, Blocks: []uint64{s | 9, s | 10}, BlockTokens: 64, Session: "s1/agent_001", Model: "small"},
			}, got)
		})
	}
}

func TestArchiveMergesByTimeAndKeepsIDsApart(t *testing.T) {
	t.Parallel()
	src := archive(t,
		"one.json", kvDoc("one", `{"t":0,"in":64,"out":1,"hash_ids":[1]},{"t":2,"in":64,"out":1,"hash_ids":[1]},{"t":5,"in":64,"out":1,"hash_ids":[2]}`),
		"none.json", kvDoc("none", ``),
		"two.json", kvDoc("two", `{"t":1,"in":64,"out":1,"hash_ids":[1]},{"t":2,"in":64,"out":1,"hash_ids":[1]}`),
		"all.json", strings.Replace(kvDoc("all", `{"t":2,"in":64,"out":1,"hash_ids":[7]}`), "local", "global", 1))
	got, err := readAll("x", bytes.NewReader(src))
	require.NoError(t, err)
	var order []string
	for _, r := range got {
		order = append(order, fmt.Sprintf("%s@%v:%x", r.Session, r.Time, r.Blocks))
	}
	assert.Equal(t, []string{"one@0s:[10000000001]", "two@1s:[30000000001]", "one@2s:[10000000001]",
		"two@2s:[30000000001]", "all@2s:[7]", "one@5s:[10000000002]"}, order)
}

func TestBlocksBelongToTheReaderUntilTheNextCall(t *testing.T) {
	t.Parallel()
	r, err := NewReader("x", strings.NewReader(mainAndAgent))
	require.NoError(t, err)
	defer r.Close()
	first, err := r.Next()
	require.NoError(t, err)
	clear(first.Blocks) // what a caller does to its view stays there
	second, err := r.Next()
	require.NoError(t, err)
	assert.Equal(t, []uint64{1<<40 | 1, 1<<40 | 2, 1<<40 | 3}, second.Blocks)
	require.NoError(t, r.Close())
	_, err = r.Next()
	assert.ErrorIs(t, err, os.ErrClosed)
}

func TestDamagedInput(t *testing.T) {
	t.Parallel()
	good := strings.SplitAfter(twoTurns, "\n")
	doc := func(rec string) string { return kvDoc("s", `{"t":0,"in":64,"out":1,"hash_ids":[1]},`+rec) }
	tests := []struct {
		name, src    string
		line         int
		field, value string
	}{
		{"empty", "", 1, "content", "empty"},
		{"some other JSON", `{"a": 1}`, 1, "content", `{"a": 1}`},
		{"not JSON", "TIMESTAMP,ContextTokens\n", 1, "content", `"TIMESTAMP,ContextTokens\n"`},
		{"bytes", "\x00\x01", 1, "content", `"\x00\x01"`},

		{"half a line", good[0] + good[1][:40], 2, "line", `{"timestamp": 3000, "input_length": 1024`},
		{"two objects on a line", good[0] + strings.Repeat(strings.TrimSpace(good[1]), 2), 2, "line", `{"timestamp": 3000, "input_length": 1024, "output_length": 7, "h…`},
		{"an array", good[0] + "[1]\n", 2, "line", "[1]"},
		{"no timestamp", good[0] + `{"input_length": 1, "output_length": 1, "hash_ids": [1]}`, 2, "timestamp", "missing"},
		{"field gone since the line before", good[0] + `{"timestamp": 1, "output_length": 1, "hash_ids": [1]}`, 2, "input_length", "missing"},
		{"no ids", good[0] + `{"timestamp": 1, "input_length": 1, "output_length": 1}`, 2, "hash_ids", "missing"},
		{"text for a number", `{"timestamp": "0", "input_length": 1, "output_length": 1, "hash_ids": [1]}`, 1, "timestamp", `"0"`},
		{"time goes back", good[1] + good[0], 2, "timestamp", "0"},
		{"negative time", `{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, 1, "timestamp", "-1"},
		{"time without end", `{"timestamp": 1e99, "input_length": 1, "output_length": 1, "hash_ids": [1]}`, 1, "timestamp", "1e99"},
		{"negative length", `{"timestamp": 0, "input_length": -5, "output_length": 1, "hash_ids": [1]}`, 1, "input_length", "-5"},
		{"half a token", `{"timestamp": 0, "input_length": 1, "output_length": 0.5, "hash_ids": [1]}`, 1, "output_length", "0.5"},
		{"too few ids", `{"timestamp": 0, "input_length": 2000, "output_length": 1, "hash_ids": [1, 2]}`, 1, "hash_ids", "2 ids"},
		{"too many ids", `{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2, 3]}`, 1, "hash_ids", "3 ids"},
		{"negative id", `{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1, -2]}`, 1, "hash_ids", "-2"},
		{"id above 64 bits", `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [18446744073709551616]}`, 1, "hash_ids", "18446744073709551616"},
		{"fractional id", `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1.5]}`, 1, "hash_ids", "1.5"},
		{"null ids", `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": null}`, 1, "hash_ids", "null"},
		{"block of nothing", `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1], "block_size": 0}`, 1, "block_size", "0"},

		{"cut document", mainAndAgent[:300], 4, "document", "not valid"},
		{"text for requests", `{"block_size": 64, "hash_id_scope": "local", "requests": "x"}`, 1, "requests", "a JSON string"},
		{"no block size", `{"hash_id_scope": "local", "requests": []}`, 0, "block_size", "missing"},
		{"unknown scope", `{"block_size": 64, "hash_id_scope": "world", "requests": []}`, 0, "hash_id_scope", "world"},
		{"no requests", `{"block_size": 64, "hash_id_scope": "local"}`, 0, "requests", "missing"},
		{"request without time", doc(`{"in":64,"out":1,"hash_ids":[1]}`), 0, "requests[1].t", "missing"},
		{"request without ids", doc(`{"t":1,"in":64,"out":1}`), 0, "requests[1].hash_ids", "missing"},
		{"ids do not fit", doc(`{"t":1,"in":64,"out":1,"hash_ids":[1,2]}`), 0, "requests[1].hash_ids", "2 ids"},
		{"id too large to keep apart", doc(`{"t":1,"in":64,"out":1,"hash_ids":[1099511627776]}`), 0, "requests[1].hash_ids", "1099511627776"},
		{"agent's time goes back", doc(`{"t":5,"agent_id":"a","requests":[{"t":2,"in":0,"out":0,"hash_ids":[]},{"t":1,"in":0,"out":0,"hash_ids":[]}]}`), 0, "requests[1].requests[1].t", "1"},
		{"request and agent", doc(`{"t":5,"requests":[],"hash_ids":[]}`), 0, "requests[1].hash_ids", "present"},
		{"agents of agents", doc(strings.Repeat(`{"t":0,"requests":[`, 9) + strings.Repeat(`]}`, 9)), 0, "requests[1]" + strings.Repeat(".requests[0]", 8) + ".requests", "9 levels deep"},
		{"archive with something else", string(archive(t, "a.json", kvDoc("a", ""), "README", "hello")), 1, "document", "not valid"},
		{"archive cut in a member", string(archive(t, "a.json", kvDoc("a", ""))[:1050]), 0, "content", "unreadable"},
		{"archive cut after a member", string(archive(t, "a.json", kvDoc("a", ""))[:1536]), 0, "content", "unreadable"},
		{"cut compression", string(compress(t, bytes.Repeat([]byte(good[0]), 5000))[:60]), 1, "content", "unreadable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readAll("x", strings.NewReader(tt.src))
			var fe *FormatError
			require.ErrorAs(t, err, &fe)
			assert.Equal(t, []any{tt.line, tt.field, tt.value}, []any{fe.Line, fe.Field, fe.Value}, "%v", err)
			assert.NotEmpty(t, fe.Limit)
			assert.ErrorIs(t, err, skep.Invalid)
		})
	}
}

func TestErrorsNameTheMemberAndAreFinal(t *testing.T) {
	t.Parallel()
	_, err := readAll("x.tar", bytes.NewReader(archive(t, "a.json", kvDoc("a", `{"t":-1}`))))
	assert.EqualError(t, err, "trace x.tar:a.json: requests[0].t is -1, want a number in 0..3153600000")

	r, err := NewReader("x", strings.NewReader(twoTurns[:60]+"\n"+twoTurns))
	require.NoError(t, err)
	defer r.Close()
	_, first := r.Next()
	require.Error(t, first)
	_, again := r.Next()
	assert.Equal(t, first, again)
}

func TestSourceErrorsComeThrough(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	_, err := readAll("x", io.MultiReader(strings.NewReader(strings.Repeat(strings.SplitAfter(twoTurns, "\n")[0], 2000)), failing{boom}))
	assert.ErrorIs(t, err, boom)
	_, err = Open(filepath.Join(t.TempDir(), "absent"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestLimits(t *testing.T) {
	t.Parallel()
	lim := limits{lineBytes: 90, sessionBytes: int64(len(mainAndAgent)), heldBytes: 1 << 20}
	read := func(src string, lim limits) error {
		r, err := newReader("x", strings.NewReader(src), lim)
		for err == nil {
			_, err = r.Next()
		}
		return err
	}
	long := strings.Replace(twoTurns, `"output_length": 7`, `"output_length":`+strings.Repeat(" ", 40)+`7`, 1)
	assert.Equal(t, io.EOF, read(twoTurns, lim))
	assert.EqualError(t, read(long, lim), "trace x:2: line is over 90 bytes, want ≤ 90 bytes")
	assert.Equal(t, io.EOF, read(mainAndAgent, lim))
	assert.ErrorContains(t, read(mainAndAgent+" ", lim), "session is over")
	lim.heldBytes = 5*laneRecordBytes + 8*5 - 1 // five requests that add five ids
	assert.ErrorContains(t, read(mainAndAgent, lim), "bytes held")
	lim.heldBytes++
	assert.Equal(t, io.EOF, read(mainAndAgent, lim))
}

func TestStats(t *testing.T) {
	t.Parallel()
	var s Stats
	assert.Zero(t, s.HitRatio())
	assert.Zero(t, s.InputQuantile(.5))
	for i, ids := range [][]uint64{{1, 2, 3}, {1, 2, 4}, {9, 2, 3}, {1, 2, 3}} {
		s.Add(Request{Blocks: ids, InputTokens: i + 1, LastValidTokens: i % 2, Time: time.Duration(i)})
	}
	// The third misses at its first block: what follows is no hit.
	assert.Equal(t, []int{4, 12, 5, 5, 2}, []int{s.Requests, s.BlockRefs, s.HitBlocks, s.UniqueBlocks(), s.Partial})
	assert.InDelta(t, 5./12, s.HitRatio(), 1e-12)
	assert.Equal(t, []int{1, 2, 4, 4}, []int{s.InputQuantile(0), s.InputQuantile(.5), s.InputQuantile(.99), s.InputQuantile(1)})
}

// published are the traces as their authors released them, see TestPublished.
func published(t *testing.T, name string) *Reader {
	path := filepath.Join("..", "..", "..", "..", "shared", "data", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("skipped: %s is not here", name)
	}
	r, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	return r
}

func sum(t *testing.T, r *Reader) *Stats {
	var s Stats
	for req, err := range r.All() {
		require.NoError(t, err)
		s.Add(req)
	}
	return &s
}

func TestPublishedConversation(t *testing.T) {
	t.Parallel()
	r := published(t, "conversation_trace.jsonl.zst")
	assert.Equal(t, Mooncake, r.Format())
	s := sum(t, r)
	assert.Equal(t, []int{12031, 288500, 182790}, []int{s.Requests, s.BlockRefs, s.UniqueBlocks()})
	assert.InDelta(t, .3664, s.HitRatio(), 5e-5)
	assert.Equal(t, []int{6909, 27367, 85401}, []int{s.InputQuantile(.5), s.InputQuantile(.9), s.InputQuantile(.99)})
	assert.Equal(t, 3537, int(s.Last.Seconds()+.5))
	assert.Greater(t, s.Partial, 11900)
}

func TestPublishedAgents(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: 348 MB to parse")
	}
	r := published(t, "agentic_dev.tar.zst")
	assert.Equal(t, Archive, r.Format())
	s := sum(t, r)
	assert.Equal(t, []int{37770, 71435210}, []int{s.Requests, s.BlockRefs})
	assert.InDelta(t, .9634, s.HitRatio(), 5e-4)
	assert.Equal(t, []int{104306, 225017, 489885}, []int{s.InputQuantile(.5), s.InputQuantile(.9), s.InputQuantile(.99)})
	assert.Zero(t, s.Partial)
}
