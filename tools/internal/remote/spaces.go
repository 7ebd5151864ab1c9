package remote

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/wire/resp"
)

// SpaceRow is one namespace as ns tells of it.
type SpaceRow struct {
	ID      skep.NamespaceID `json:"id"`      // its number; 0 in a cluster, where each node has one of its own
	Tenant  string           `json:"tenant"`  // who pays
	Name    string           `json:"name"`    // unique within the tenant
	Model   string           `json:"model"`   // fingerprint
	Class   string           `json:"class"`   // cache or durable
	Copies  int              `json:"copies"`  // of each block
	Chained bool             `json:"chained"` // blocks have parents
	Shape   skep.Shape       `json:"shape"`   // geometry, as package skep's Shape
	Created time.Time        `json:"created"` // RFC 3339
	Blocks  int64            `json:"blocks"`  // stored; each copy on another node counts (blocks)
}

// SpacesResult is what ns list prints.
type SpacesResult struct {
	Namespaces []SpaceRow `json:"namespaces"` // namespaces, at most --limit
	More       bool       `json:"more"`       // there are more than --limit
}

// RemovalResult is what purge and ns delete print.
type RemovalResult struct {
	Namespaces int   `json:"namespaces"` // that it was about
	Blocks     int64 `json:"blocks"`     // that were in them before (blocks)
	Deleted    bool  `json:"deleted"`    // it was done
}

// rowOf tells of a namespace of the server's Store, or of its whole cluster.
func (r *remote) rowOf(ctx context.Context, st skep.Store, n *skep.NamespaceInfo) (SpaceRow, error) {
	row := SpaceRow{n.ID, n.Tenant, n.Name, n.Model, n.Class.String(), max(n.Copies, 1), n.Chained, n.Shape,
		n.Created, 0}
	if st != skep.Store(r.c) {
		row.ID = 0
	}
	var err error
	row.Blocks, err = st.CountBlocks(ctx, n.ID)
	return row, err
}

func nsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{Use: "ns", Short: "list, show and delete the namespaces of a running server",
		Long: `Lists, shows and deletes the namespaces of a running server. A number is that which ns list shows, and no Redis
database: what --ns 3 is of other commands is namespace resp/3 here.`}
	cmd.AddCommand(nsListCommand(a), nsShowCommand(a), nsDeleteCommand(a))
	return cmd
}

func nsListCommand(a *command.App) *cobra.Command {
	limit := 0
	cmd := &cobra.Command{Use: "list", Short: "list the namespaces that the credentials reach", Args: command.NoArgs}
	cmd.Flags().IntVar(&limit, "limit", 1000, "namespaces at most")
	return newCommand(a, cmd, func(ctx context.Context, r *remote, _ []string) error {
		if limit < 1 || limit > mostListed {
			return skep.Invalidf("ns list", "--limit", limit, fmt.Sprintf("1 to %d", mostListed))
		}
		st, err := r.all(ctx)
		if err != nil {
			return err
		}
		list, err := st.Namespaces(ctx)
		if err != nil {
			return err
		}
		res := SpacesResult{Namespaces: []SpaceRow{}, More: len(list) > limit}
		for i := range list[:min(limit, len(list))] {
			row, err := r.rowOf(ctx, st, &list[i])
			if skep.KindOf(err) == skep.NotFound { // deleted since
				continue
			}
			if err != nil {
				return err
			}
			if r.Lines {
				if err := r.row(row); err != nil {
					return err
				}
				continue
			}
			res.Namespaces = append(res.Namespaces, row)
		}
		if res.More {
			r.Note("there are %d: --limit %d", len(list), limit)
		}
		if r.Lines {
			return nil
		}
		return r.Print(res, func(w io.Writer) {
			rows := [][]string{{"ID", "TENANT", "NAME", "BLOCKS", "CLASS", "COPIES", "MODEL"}}
			for _, n := range res.Namespaces {
				id := "-"
				if n.ID != 0 {
					id = fmt.Sprint(n.ID)
				}
				rows = append(rows, command.Row(id, n.Tenant, n.Name, n.Blocks, n.Class, n.Copies, n.Model))
			}
			command.Table(w, rows...)
		})
	})
}

func nsShowCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{Use: "show NAME", Short: "show one namespace, by name or number", Args: takes("a namespace's name or number", 1)}
	return newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) error {
		st, err := r.all(ctx)
		if err != nil {
			return err
		}
		n, err := r.find(ctx, st, args[0])
		if err != nil {
			return err
		}
		row, err := r.rowOf(ctx, st, &n)
		if err != nil {
			return err
		}
		return r.Print(row, func(w io.Writer) {
			order := "keys stand alone, the last writer wins"
			if row.Chained {
				order = "blocks have parents, the first writer wins"
			}
			name := row.Name
			if row.ID != 0 {
				name += fmt.Sprintf(", number %d", row.ID)
			}
			command.Table(w, command.Row("namespace", name), command.Row("tenant", row.Tenant),
				command.Row("model", row.Model), command.Row("blocks", row.Blocks), command.Row("class", fmt.Sprintf("%s, %d copies", row.Class, row.Copies)),
				command.Row("order", order), command.Row("made", row.Created.UTC().Format(time.RFC3339)))
		})
	})
}

func nsDeleteCommand(a *command.App) *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "delete a namespace with its blocks, and free its name",
		Long: `Purges a namespace, by name or number, and frees its name. It counts the blocks and asks first, unless --yes is
given. It takes the right admin.`,
		Args: takes("a namespace's name or number", 1),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) error {
		st, err := r.all(ctx)
		if err != nil {
			return err
		}
		n, err := r.find(ctx, st, args[0])
		if err != nil {
			return err
		}
		what := "delete namespace " + n.Name + " of tenant " + n.Tenant
		return r.remove(ctx, st, what, []skep.NamespaceInfo{n}, yes, func() error { return st.DeleteNamespace(ctx, n.ID) })
	})
}

func purgeCommand(a *command.App) *cobra.Command {
	var tenant, ns, model string
	yes := false
	cmd := &cobra.Command{
		Use: "purge", Short: "make all blocks of a tenant, a namespace or a model invisible at once",
		Long: `Purges what exactly one of --tenant, --ns and --model names. Namespaces stay; space comes back with garbage
collection. It counts the blocks and asks first, unless --yes is given. It takes the right admin, and
for --model a credential that reaches every tenant.`,
		Args: command.NoArgs,
	}
	fl := cmd.Flags()
	fl.StringVar(&tenant, "tenant", "", "purge all namespaces of this tenant")
	fl.StringVar(&ns, "ns", "", "purge this namespace, by name or number; 0 to 15 are Redis databases")
	fl.StringVar(&model, "model", "", "purge all namespaces of this model fingerprint")
	fl.BoolVar(&yes, "yes", false, "do not ask")
	cmd = newCommand(a, cmd, func(ctx context.Context, r *remote, _ []string) error {
		st, err := r.all(ctx)
		if err != nil {
			return err
		}
		var what string
		var purges []skep.Purge
		var match func(n *skep.NamespaceInfo) bool
		switch {
		case tenant != "":
			what, purges = "tenant "+tenant, []skep.Purge{{Tenant: tenant}}
			match = func(n *skep.NamespaceInfo) bool { return n.Tenant == tenant }
		case model != "":
			what, purges = "model "+model, []skep.Purge{{Model: model}}
			match = func(n *skep.NamespaceInfo) bool { return n.Model == model }
		default:
			names, err := r.named(ctx, st, ns)
			if err != nil {
				return err
			}
			what = "namespace " + ns
			match = func(n *skep.NamespaceInfo) bool { return slices.Contains(names, n.ID) }
			for _, id := range names {
				purges = append(purges, skep.Purge{Namespace: id})
			}
		}
		list, err := st.Namespaces(ctx)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(n skep.NamespaceInfo) bool { return !match(&n) })
		if len(list) == 0 {
			return command.WithNext(&skep.Error{Op: "purge", Kind: skep.NotFound, Field: "namespaces", Value: "none of " + what}, "skep ns list names those there are")
		}
		return r.remove(ctx, st, "purge "+what, list, yes, func() error {
			for _, p := range purges {
				if err := st.Purge(ctx, p); err != nil {
					return err
				}
			}
			return nil
		})
	})
	connected := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n := 0
		for _, name := range []string{"tenant", "ns", "model"} {
			if cmd.Flags().Lookup(name).Value.String() != "" {
				n++
			}
		}
		if n != 1 {
			return skep.Invalidf("purge", "--tenant, --ns and --model given", n, "exactly one of them")
		}
		return connected(cmd, args)
	}
	return cmd
}

// named are the numbers of the namespaces that --ns names: both of a Redis database, or one.
func (r *remote) named(ctx context.Context, st skep.Store, ns string) (ids []skep.NamespaceID, err error) {
	db, ok := databaseOf(ns)
	if !ok {
		n, err := r.find(ctx, st, ns)
		return []skep.NamespaceID{n.ID}, err
	}
	list, err := st.NamespacesOf(ctx, r.tenant())
	if err != nil {
		return nil, err
	}
	for _, n := range list {
		if slices.Contains(resp.NamespacesOf(db), n.Name) {
			ids = append(ids, n.ID)
		}
	}
	if len(ids) == 0 {
		err = command.WithNext(&skep.Error{Op: "purge", Kind: skep.NotFound, Field: "--ns", Value: ns}, "no value was put into that database; skep ns list names the namespaces there are, and "+
			"one whose number is 0 to 15 goes by its name")
	}
	return ids, err
}

// remove counts what is about to go, asks, and has do carry it out.
func (r *remote) remove(ctx context.Context, st skep.Store, what string, list []skep.NamespaceInfo, yes bool,
	do func() error) error {
	res := RemovalResult{Namespaces: len(list)}
	for _, n := range list {
		blocks, err := st.CountBlocks(ctx, n.ID)
		if err != nil && skep.KindOf(err) != skep.NotFound {
			return err
		}
		res.Blocks += blocks
	}
	if !yes {
		err := Confirm(ctx, r.App, fmt.Sprintf("%s: %d blocks in %d namespaces?", what, res.Blocks, res.Namespaces))
		if err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	res.Deleted = true
	return r.Print(res, func(w io.Writer) {
		fmt.Fprintf(w, "%s: done, %d blocks in %d namespaces\n", command.Printable(what), res.Blocks, res.Namespaces)
	})
}

// Confirm asks whoever is there, and is an error unless they say yes.
func Confirm(ctx context.Context, a *command.App, question string) error {
	fmt.Fprintf(a.Err, "%s [y/N] ", command.Printable(question))
	answer, err := bufio.NewReader(io.LimitReader(&interruptible{ctx: ctx, in: a.In}, 1024)).ReadString('\n')
	if ctx.Err() != nil {
		return ctx.Err()
	}
	answer = strings.TrimSpace(answer)
	if said := strings.ToLower(answer); said == "y" || said == "yes" {
		return nil
	}
	if err != nil {
		fmt.Fprintln(a.Err)
	}
	return command.WithNext(skep.Invalidf("confirm", "answer", fmt.Sprintf("%q", answer), "y: nothing was changed"),
		"answer y, or give --yes where nobody is there to answer")
}
