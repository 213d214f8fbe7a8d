"""Control of sagas from outside: starts, interventions, and letting one leave its bulk workflow."""
