// Package compact says which groups are worth writing again, and in which order their blocks then lie.
//
// It is arithmetic: Choose weighs groups by what is dead in them and by the chains that lie scattered, Order puts
// blocks as their chains are read, Emptiest names the drive that is to get a share of what others hold. Who asks
// moves them.
package compact
