"""The page of streams in Airflow: a plugin of the api-server. It reads; what acts are DAGs, by Airflow's own API."""
