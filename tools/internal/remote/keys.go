package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
)

// KeysResult is what doctor keys prints.
type KeysResult struct {
	Groups []KeysGroup `json:"groups"` // processes that could share blocks: one engine, model and rank
}

// KeysGroup is processes of one engine that serve the same part of one model.
type KeysGroup struct {
	Engine   string        `json:"engine"`   // vllm, sglang, lmcache
	Model    string        `json:"model"`    // as the engine names it
	Part     string        `json:"part"`     // rank, group, pool: what is never shared with another
	Settings []KeysSetting `json:"settings"` // what processes of it have told, the latest last
	Differ   []KeysDiffer  `json:"differ"`   // why these do not share; empty: they do
}

// KeysSetting is one set of values by which keys and bytes are made.
type KeysSetting struct {
	Tenant    string    `json:"tenant"`    // whose blocks
	Namespace string    `json:"namespace"` // where they are
	Blocks    int64     `json:"blocks"`    // in it, now; -1: not known
	Host      string    `json:"host"`      // of the process that told it last
	Pid       int       `json:"pid"`       // and its number
	Seen      time.Time `json:"seen"`      // and when
}

// KeysDiffer is one value that is not the same.
type KeysDiffer struct {
	Field  string   `json:"field"`  // its name
	Values []string `json:"values"` // by setting
	Do     string   `json:"do"`     // what makes it the same
}

// told is what a process told of one namespace: skepkv's _keys.py.
type told struct {
	Format int                        `json:"format"`
	Space  string                     `json:"space"`
	About  map[string]json.RawMessage `json:"about"`
	Host   string                     `json:"host"`
	Pid    int                        `json:"pid"`
	Seen   int64                      `json:"seen"`

	tenant string
	blocks int64
	values map[string]string
}

const (
	keysSpace   = "skepkv/keys"
	keysFormat  = 1
	largestTold = 64 << 10
	mostTold    = 10_000
	keysMark    = "skep: keys {" // how a document begins in a log
)

// parts are the values that tell apart what is never shared: they are no reason.
var parts = []string{"rank", "tp_rank", "pp_rank", "dp_rank", "attn_cp_rank", "dcp_rank", "group", "pool"}

// remedies says what makes a value the same, by its name.
var remedies = map[string]string{
	"tenant":         "tenants share nothing: give both processes a credential of one tenant",
	"none_hash":      "start every process with one PYTHONHASHSEED, a number, and one --prefix-caching-hash-algo",
	"PYTHONHASHSEED": "start every process with one PYTHONHASHSEED, a number",
	"hash-algorithm": "give every LMCache one --hash-algorithm",
	"chunk-size":     "give every LMCache one --chunk-size",
	"revision":       "have all load the same weights; where the files only look different, one \"revision\"",
	"fingerprint":    "give the connectors one \"fingerprint\"",
	"dtype":          "give all one dtype of the KV cache (--kv-cache-dtype)",
	"layout":         "give all one layout of the KV cache (--hicache-mem-layout, VLLM_KV_CACHE_LAYOUT)",
	"page_size":      "give all one --page-size",
	"version":        "run one version of the engine: another one may lay out its cache otherwise",
	"tp_size":        "run all with one tensor-parallel size",
	"pp_size":        "run all with one pipeline-parallel size",
	"format":         "run one version of skepkv",
}

// KeysCommand says why processes of engines do not share what they store.
func KeysCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys [LOG ...]",
		Short: "say why two engines do not find each other's blocks",
		Long: `The connectors of skepkv tell the server, when they first use a namespace, what their keys and bytes are by:
model, revision, dtype, layout, block size, ranks, hash and seed. This compares what was told, of each engine and model,
and names what differs and what to do about it. The same is in the engines' logs, whose files may be named in place of a
server.
Salts are told to nobody: blocks under two salts are never shared. Exit code 6: some do not share.`,
		Example: "  skep doctor keys\n  skep doctor keys --server skep://10.0.0.1:7420\n" +
			"  skep doctor keys prefill.log decode.log",
	}
	cmd = newCommand(a, cmd, func(ctx context.Context, r *remote, _ []string) error {
		list, err := r.told(ctx)
		if err != nil {
			return err
		}
		return printKeys(r.App, list)
	})
	ask := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return ask(cmd, args)
		}
		var list []told
		for _, path := range args {
			found, err := toldIn(path)
			if err != nil {
				return err
			}
			list = append(list, found...)
		}
		return printKeys(a, list)
	}
	return cmd
}

func printKeys(a *command.App, list []told) error {
	if len(list) == 0 {
		err := &skep.Error{Op: "doctor keys", Kind: skep.NotFound, Field: "what processes told of their keys"}
		return command.WithNext(err, "start an engine with a connector of skepkv and serve a prompt; "+
			"it tells then, and logs \"skep: keys\" at level INFO")
	}
	out := KeysResult{Groups: compareKeys(list)}
	for _, g := range out.Groups {
		if len(g.Differ) > 0 {
			a.Code = command.Faults
		}
	}
	return a.Print(out, func(w io.Writer) { keysText(w, &out) })
}

// told is what processes of all tenants that the credentials reach have told the server.
func (r *remote) told(ctx context.Context) (out []told, err error) {
	st, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	spaces, err := st.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	ids := map[[2]string]skep.NamespaceID{}
	for _, n := range spaces {
		ids[[2]string{n.Tenant, n.Name}] = n.ID
	}
	for _, n := range spaces {
		if n.Name != keysSpace || n.Chained {
			continue
		}
		for at := uint64(0); len(out) < mostTold; {
			keys, next, err := st.ListKeys(ctx, n.ID, at, 256)
			if err != nil {
				return nil, err
			}
			list, err := readTold(ctx, st, n, keys)
			if err != nil {
				return nil, err
			}
			out = append(out, list...)
			if at = next; at == 0 {
				break
			}
		}
	}
	counted := map[skep.NamespaceID]int64{}
	for i := range out {
		id, ok := ids[[2]string{out[i].tenant, out[i].Space}]
		if !ok {
			continue
		}
		n, ok := counted[id]
		if !ok {
			if n, err = st.CountBlocks(ctx, id); err != nil {
				n = -1
			}
			counted[id] = n
		}
		out[i].blocks = n
	}
	return out, nil
}

func readTold(ctx context.Context, st skep.Store, n skep.NamespaceInfo, keys []skep.Key) (out []told, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	all := skep.Chain{Scope: skep.Scope{Namespace: n.ID}, Keys: keys}
	err = skep.Load(ctx, st, &skep.RestoreRequest{Chains: []skep.Chain{all}}, func(c *skep.Chunk) error {
		if c.Err != nil || c.Bytes > largestTold {
			return nil // gone meanwhile, or nothing of ours
		}
		if t, ok := parseTold(c.AppendTo(nil)); ok {
			t.tenant = n.Tenant
			out = append(out, t)
		}
		return nil
	})
	return out, err
}

// toldIn is what a log has.
func toldIn(path string) (out []told, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &skep.Error{Op: "doctor keys", Kind: skep.Invalid, Field: "LOG", Value: path,
			Limit: "a file that can be read", Err: err}
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, largestTold)
	for {
		line, err := lines.ReadSlice('\n')
		if i := bytes.Index(line, []byte(keysMark)); i >= 0 {
			if t, ok := parseTold(line[i+len(keysMark)-1:]); ok {
				t.blocks = -1
				out = append(out, t)
			}
		}
		switch err {
		case nil, bufio.ErrBufferFull:
		case io.EOF:
			return out, nil
		default:
			return nil, &skep.Error{Op: "doctor keys", Kind: skep.Failed, Field: "LOG", Value: path, Err: err}
		}
	}
}

// mostSeen is the last second of the year 9999: JSON has no later time.
const mostSeen = 253402300799

// parseTold reads a document; false where it is none. Behind it, on its line, there may be something else.
func parseTold(b []byte) (t told, ok bool) {
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&t); err != nil {
		return t, false
	}
	if t.Format != keysFormat || t.Space == "" || t.Seen < 0 || t.Seen > mostSeen {
		return t, false
	}
	t.values = map[string]string{}
	for name, raw := range t.About {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			s = string(raw)
		}
		if string(raw) != "null" && s != "None" { // as if it were not told
			t.values[name] = s
		}
	}
	return t, true
}

// compareKeys puts what was told into groups, and names what differs in each.
func compareKeys(list []told) []KeysGroup {
	type who struct{ engine, model, part string }
	of := map[who][]told{}
	for _, t := range list {
		var part []string
		for _, name := range parts {
			if v, ok := t.values[name]; ok {
				part = append(part, name+" "+v)
			}
		}
		model := cmp.Or(t.values["model"], t.values["model_name"])
		k := who{t.values["engine"], model, strings.Join(part, ", ")}
		of[k] = append(of[k], t)
	}
	out := []KeysGroup{}
	for k, group := range of {
		slices.SortStableFunc(group, func(a, b told) int { return cmp.Compare(a.Seen, b.Seen) })
		group = latest(group)
		g := KeysGroup{Engine: k.engine, Model: k.model, Part: k.part, Settings: []KeysSetting{}, Differ: differ(group)}
		for _, t := range group {
			g.Settings = append(g.Settings, KeysSetting{Tenant: t.tenant, Namespace: t.Space, Blocks: t.blocks,
				Host: t.Host, Pid: t.Pid, Seen: time.Unix(t.Seen, 0).UTC()})
		}
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b KeysGroup) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Part, b.Part))
	})
	return out
}

// latest leaves of those that told the same the one that told it last. They are in the order of time.
func latest(group []told) (out []told) {
	seen := map[string]bool{}
	for _, t := range slices.Backward(group) {
		same, _ := json.Marshal([]any{t.tenant, t.Space, t.values}) // a map's keys are sorted in it
		if !seen[string(same)] {
			seen[string(same)] = true
			out = append(out, t)
		}
	}
	slices.Reverse(out)
	return out
}

// differ names the values that are not the same in all of a group.
func differ(group []told) []KeysDiffer {
	names := map[string]bool{"tenant": true}
	for _, t := range group {
		for name := range t.values {
			names[name] = true
		}
	}
	out := []KeysDiffer{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d := KeysDiffer{Field: name, Do: cmp.Or(remedies[name], "have it the same in all")}
		for _, t := range group {
			v := t.tenant
			if name != "tenant" {
				var ok bool
				if v, ok = t.values[name]; !ok {
					v = "-"
				}
			}
			d.Values = append(d.Values, v)
		}
		alone := random(name, d.Values[0])
		if alone || slices.ContainsFunc(d.Values, func(v string) bool { return v != d.Values[0] }) {
			out = append(out, d)
		}
	}
	return out
}

// random says that a value is another one in every process, though it looks the same.
func random(name, value string) bool {
	return (name == "none_hash" || name == "PYTHONHASHSEED") && value == "random"
}

func keysText(w io.Writer, r *KeysResult) {
	for i, g := range r.Groups {
		if i > 0 {
			fmt.Fprintln(w)
		}
		part := ""
		if g.Part != "" {
			part = ", " + g.Part
		}
		fmt.Fprintln(w, command.Printable(cmp.Or(g.Engine, "an engine")+", "+cmp.Or(g.Model, "a model")+part))
		rows := [][]string{}
		for n, s := range g.Settings {
			blocks := fmt.Sprintf("%d blocks", s.Blocks)
			if s.Blocks < 0 {
				blocks = ""
			}
			who := fmt.Sprintf("%s, process %d, %s", s.Host, s.Pid, s.Seen.Format(time.DateTime))
			rows = append(rows, command.Row(fmt.Sprintf("  %d", n+1), command.Printable(who),
				command.Printable(strings.TrimSpace(s.Tenant+" "+s.Namespace)), blocks))
		}
		command.Table(w, rows...)
		if len(g.Differ) == 0 {
			fmt.Fprintln(w, "  whoever is so set shares its blocks")
			continue
		}
		fmt.Fprintln(w, "  do not share, for these differ:")
		rows = nil
		for _, d := range g.Differ {
			rows = append(rows, command.Row("  "+command.Printable(d.Field), strings.Join(short(d.Values), " | ")),
				command.Row("", "→ "+d.Do))
		}
		command.Table(w, rows...)
	}
}

// short is values as a table has room for.
func short(values []string) (out []string) {
	const most = 32
	for _, v := range values {
		if r := []rune(command.Printable(v)); len(r) > most {
			v = string(r[:most-1]) + "…"
		} else {
			v = string(r)
		}
		out = append(out, v)
	}
	return out
}
