package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/remote"
)

func (a *app) namespaceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "namespace", Short: "delete a namespace of a store, in use or not"}
	f, yes := moveFlags{}, false
	del := &cobra.Command{
		Use:   "delete TENANT NAME",
		Short: "purge a namespace and free its name",
		Long: `Makes a namespace as if it had never been: its blocks are purged, also those of its clustered contexts,
and its name may be used again, for something else too. Its number is not given out again. Space comes
back as groups are cleaned. A store that is served, or open in another process with its admin socket, is
asked to do it while it is in use; nobody else may have one open without. It counts the blocks and asks
first, unless --yes is given.`,
		Args: exactly(2),
	}
	del.Flags().StringVar(&f.dir, "dir", "", "directory of the store (required)")
	del.Flags().BoolVar(&f.dryRun, "dry-run", false, "say what would be deleted, and change nothing")
	del.Flags().BoolVar(&yes, "yes", false, "do not ask")
	del.RunE = func(cmd *cobra.Command, args []string) error {
		q := store.NamespaceRequest{Tenant: args[0], Name: args[1], DryRun: true}
		r, err := store.NamespaceDeletion{}, error(nil)
		if f.dryRun || !yes {
			r, err = a.deleteNamespace(cmd.Context(), &f, q)
		}
		if err == nil && !f.dryRun {
			if !yes {
				err = remote.Confirm(cmd.Context(), a.App, fmt.Sprintf("delete namespace %s of tenant %s: %d blocks, %s?",
					r.Name, r.Tenant, r.Blocks, command.Size(r.Bytes)))
			}
			if err == nil {
				q.DryRun = false
				r, err = a.deleteNamespace(cmd.Context(), &f, q)
			}
		}
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			done := "deleted"
			if r.DryRun {
				done = "would delete"
			}
			command.Table(w, command.Row(done, fmt.Sprintf("namespace %d, %s of tenant %s", r.ID, r.Name, r.Tenant)),
				command.Row("with it", fmt.Sprintf("%d blocks, %s", r.Blocks, command.Size(r.Bytes))))
		})
	}
	cmd.AddCommand(del)
	return cmd
}

// deleteNamespace has it deleted by who has the store open, or opens it.
func (a *app) deleteNamespace(ctx context.Context, f *moveFlags, q store.NamespaceRequest) (r store.NamespaceDeletion, err error) {
	o, err := f.options(a)
	if err != nil {
		return r, err
	}
	o.ReadOnly = q.DryRun
	unknown := func(err error) error {
		if skep.KindOf(err) != skep.NotFound {
			return err
		}
		return command.WithNext(err, "skep inspect namespaces --dir "+f.dir+" names those there are")
	}
	served, err := isServed(ctx, f.dir)
	if err != nil {
		return r, err
	}
	if served {
		r, err = store.AskDeleteNamed(ctx, f.dir, q)
		return r, unknown(err)
	}
	err = a.withStore(ctx, f, o, func(s *store.Store) (err error) {
		r, err = s.DeleteNamed(ctx, q)
		return unknown(err)
	})
	return r, err
}
