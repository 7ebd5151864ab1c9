package cli

import "github.com/spf13/cobra"

func (a *app) benchCommand() *cobra.Command   { return &cobra.Command{Use: "bench"} }
func (a *app) inspectCommand() *cobra.Command { return &cobra.Command{Use: "inspect"} }
func (a *app) doctorCommand() *cobra.Command  { return &cobra.Command{Use: "doctor"} }
func (a *app) demoCommand() *cobra.Command    { return &cobra.Command{Use: "demo"} }
func (a *app) versionCommand() *cobra.Command { return &cobra.Command{Use: "version"} }
