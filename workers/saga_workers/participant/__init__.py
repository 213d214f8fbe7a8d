"""`saga participant`: checks of a service that somebody else wrote, and a reference participant that passes them."""
