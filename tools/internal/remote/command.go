package remote

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/resp"
)

// remote is the state of one command.
type remote struct {
	*command.App
	target Target
	c      *wire.Client
	whole  *replication.Store // of the cluster that the server is a node of; nil: it is of none, or nobody asked
}

// Commands are all of them.
func Commands(a *command.App) []*cobra.Command {
	return []*cobra.Command{putCommand(a), getCommand(a), delCommand(a), lsCommand(a), nsCommand(a), purgeCommand(a),
		statusCommand(a),
		readyCommand(a)}
}

// newCommand makes a command that calls a server: run is called with a connection.
func newCommand(
	a *command.App, cmd *cobra.Command, run func(ctx context.Context, r *remote, args []string) error,
) *cobra.Command {
	r := &remote{App: a}
	r.target.Register(cmd.Flags())
	cmd.Flags().VarP((*format)(a), "output", "o", "what to print: table, json, or jsonl for a line of JSON each")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		ctx := cmd.Context()
		r.target.Err = a.Err
		if r.c, err = r.target.Dial(ctx, cmd.CommandPath()); err != nil {
			return err
		}
		defer r.close()
		err = run(ctx, r, args)
		if err != nil && ctx.Err() != nil {
			return ctx.Err() // whatever it broke off with
		}
		return r.target.Explain(err)
	}
	return cmd
}

// all is the server's Store, or that of the cluster that it is a node of.
func (r *remote) all(ctx context.Context) (skep.Store, error) {
	if r.whole != nil {
		return r.whole, nil
	}
	node, err := r.c.Node(ctx)
	if err == nil && node == "" && r.target.listed {
		if _, err = r.c.ClusterMap(ctx); skep.KindOf(err) == skep.Unsupported { // one that does not say has a map yet
			err = skep.Invalidf(op, r.target.flag(), r.target.String()+", of several, which is no node of a cluster",
				"a cluster's nodes, or one server alone")
			return nil, command.WithNext(err, "name one server with "+r.target.flag()+
				": several servers of no cluster are several stores")
		}
	}
	if err != nil || node == "" && !r.target.listed {
		return r.c, err
	}
	if r.target.token != "" {
		if text, err := r.c.ClusterMap(ctx); err == nil { // else Connect says what is wrong
			if m, err := clustermap.Parse(text); err == nil {
				r.target.warnOfNodes(m)
			}
		}
	}
	if r.whole, err = replication.Connect(r.target.options("skep")); err != nil {
		return nil, err
	}
	return r.whole, nil
}

func (r *remote) close() {
	if r.whole != nil {
		_ = r.whole.Close()
	}
	_ = r.c.Close()
}

// format is -o.
type format command.App

func (f *format) String() string {
	switch {
	case f.Lines:
		return "jsonl"
	case f.JSON:
		return "json"
	}
	return "table"
}

func (f *format) Type() string { return "FORMAT" }

func (f *format) Set(s string) error {
	switch s {
	case "table", "json", "jsonl":
		f.JSON, f.Lines = s != "table", s == "jsonl"
		return nil
	}
	return errors.New("must be table, json or jsonl")
}

// row prints one row of a list that is printed as lines of JSON.
func (r *remote) row(v any) error { return json.NewEncoder(r.Out).Encode(v) }

// takes refuses a number of arguments that is not among n.
func takes(what string, n ...int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, k := range n {
			if len(args) == k {
				return nil
			}
		}
		path := cmd.CommandPath()
		return command.Usage(cmd, fmt.Errorf("%s needs %s, not %d arguments", path, what, len(args)), path+" --help")
	}
}

// keys are those that arguments name, as text or in hexadecimal.
func keys(args []string, inHex bool) ([][]byte, error) {
	out := make([][]byte, len(args))
	for i, s := range args {
		out[i] = []byte(s)
		if inHex {
			b, err := hex.DecodeString(s)
			if err != nil {
				return nil, skep.Invalidf(op, "KEY with --hex", s, "hexadecimal digits, two a byte")
			}
			out[i] = b
		}
	}
	return out, nil
}

// shown is a key as a person, or JSON, can read it: its text, or hexadecimal digits where that is no text.
func shown(key []byte, inHex bool) (text string, isHex bool) {
	if inHex || !utf8.Valid(key) || strings.ContainsFunc(string(key), func(r rune) bool { return !unicode.IsPrint(r) }) {
		return hex.EncodeToString(key), true
	}
	return string(key), false
}

// databaseOf is the Redis database that --ns names: its number, or its namespace's name. Another number is a namespace's.
func databaseOf(ns string) (int, bool) {
	if n, err := strconv.Atoi(ns); err == nil {
		return resp.DatabaseOf(resp.NamespacesOf(n)[0])
	}
	return resp.DatabaseOf(ns)
}

// values are those of the Redis database that --ns names, of the whole cluster where the server is a node of one.
func (r *remote) values(ctx context.Context, ns string) (*resp.Values, error) {
	n, ok := databaseOf(ns)
	if !ok {
		return nil, command.WithNext(skep.Invalidf(op, "--ns", ns, "a Redis database: 0 to 15, or resp/0 to resp/15"),
			"values are kept in Redis databases; blocks of other namespaces are an engine's, which puts and gets them "+
				"(skep ls --ns NAME lists their keys)")
	}
	st, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	v, err := resp.NewValues(st, r.tenant(), n)
	if err != nil {
		err = skep.Invalidf(op, "--ns", ns, "a Redis database: 0 to 15, or resp/0 to resp/15")
	}
	return v, err
}

func (r *remote) tenant() string {
	tenant, _ := r.c.Identity()
	return tenant
}

// find is the namespace of that name or number, among those that the credentials reach. In a cluster each node has
// numbers of its own: there it goes by the name.
func (r *remote) find(ctx context.Context, st skep.Store, name string) (skep.NamespaceInfo, error) {
	list, err := st.Namespaces(ctx)
	if err != nil {
		return skep.NamespaceInfo{}, err
	}
	var found []skep.NamespaceInfo
	for _, n := range list {
		if n.Name == name || st == skep.Store(r.c) && strconv.Itoa(int(n.ID)) == name {
			found = append(found, n)
		}
	}
	switch _, number := strconv.Atoi(name); {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1 && st != skep.Store(r.c):
		err := skep.Invalidf("namespace", "name", name, fmt.Sprintf("one namespace's: %d tenants have one of it", len(found)))
		return skep.NamespaceInfo{}, command.WithNext(err, "use a token of that tenant")
	case len(found) == 0 && number == nil && st != skep.Store(r.c):
		err := skep.Invalidf("namespace", "number", name, "a name: in a cluster each node has numbers of its own")
		return skep.NamespaceInfo{}, command.WithNext(err, "skep ns list names those there are")
	case len(found) == 0:
		return skep.NamespaceInfo{}, command.WithNext(&skep.Error{Op: "namespace", Kind: skep.NotFound, Field: "name or number", Value: name}, "skep ns list names those there are")
	}
	return skep.NamespaceInfo{}, command.WithNext(skep.Invalidf("namespace", "name", name, fmt.Sprintf("one namespace's: %d tenants have one of it", len(found))), "give its number, which skep ns list shows")
}

// interruptible gives up a read when ctx ends: what waits for a person or a pipe waits for ever.
type interruptible struct {
	ctx  context.Context
	in   io.Reader
	left []byte
	err  error
}

func (r *interruptible) Read(p []byte) (int, error) {
	if len(r.left) == 0 && r.err == nil {
		type read struct {
			b   []byte
			err error
		}
		done := make(chan read, 1)
		go func() {
			b := make([]byte, 256<<10)
			n, err := r.in.Read(b)
			done <- read{b[:n], err}
		}()
		select {
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		case got := <-done:
			r.left, r.err = got.b, got.err
		}
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	if len(r.left) > 0 {
		return n, nil
	}
	return n, r.err
}
