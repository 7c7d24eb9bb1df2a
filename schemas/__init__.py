"""What the data is: Arrow schemas, config models and the errors a user can meet. Imports nothing of ours."""
